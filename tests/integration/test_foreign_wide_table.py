"""Other engines and a table of many columns: the bounds of a file's offsets must survive their changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from pyiceberg.table import Table

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.reconciling import left, reconciled
from tests.support.spark.foreign_spark import ForeignSpark, foreign_spark  # noqa: F401 - a fixture

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FIELDS = 130
"""More than the hundred columns for which engines keep bounds by default."""
RECORD = b"\x08\x07"
"""The first field, 7."""
PREFIX = "write.metadata.metrics.column.kafka."


def wide_descriptors() -> bytes:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number in range(1, FIELDS + 1):
        message.field.add(
            name=f"field_{number}", number=number, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL
        )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    (made.root / "shop.binpb").write_bytes(wide_descriptors())
    with Driver(made) as driver:
        for partition in (0, 1):
            driver.send("orders", [RECORD] * 5, partition)
        driver.archive()
        driver.send("orders", [RECORD], 0)
        driver.archive()
    return made


def reported(table: Table) -> dict[str, str]:
    return {
        name.removeprefix(PREFIX): value
        for name, value in table.properties.items()
        if name.startswith(PREFIX)
    }


def test_a_wide_table_goes_on_after_it_was_compacted_and_expired(
    deployment: Deployment,
    foreign_spark: ForeignSpark,  # noqa: F811
) -> None:
    for statement in (
        "ALTER TABLE shop.orders SET TBLPROPERTIES ('gc.enabled' = 'true')",
        "CALL system.rewrite_data_files(table => 'shop.orders', options => map('rewrite-all', 'true'))",
        (
            "CALL system.expire_snapshots(table => 'shop.orders', retain_last => 1, older_than => "
            "TIMESTAMP '2100-01-01 00:00:00')"
        ),
    ):
        foreign_spark.sql(deployment, statement)
    with catalog_table(deployment, "shop.orders") as table:
        wanted = {
            table.schema().find_field(f"kafka.{name}").field_id
            for name in ("partition", "offset", "ingest_timestamp")
        }
        for task in table.scan().plan_files():
            assert wanted <= set(task.file.lower_bounds or {}) & set(task.file.upper_bounds or {})
    with Driver(deployment) as driver:
        driver.send("orders", [RECORD], 0)
        assert driver.archive().topics["orders"].state == "archived"
        driver.check_complete("orders")
    assert left(reconciled(deployment)) == []


def test_a_table_of_an_older_version_is_reported_with_the_next_commit(deployment: Deployment) -> None:
    whole = dict.fromkeys(("partition", "offset", "ingest_timestamp"), "full")
    with catalog_table(deployment, "shop.orders") as table:
        assert reported(table) == whole
        with table.transaction() as transaction:
            transaction.remove_properties(*(PREFIX + name for name in whole))
    with catalog_table(deployment, "shop.orders") as table, table.transaction() as transaction:
        transaction.set_properties({f"{PREFIX}offset": "truncate(16)"})  # which leaves numbers whole
    with Driver(deployment) as driver:
        driver.send("orders", [RECORD], 0)
        driver.archive()
    with catalog_table(deployment, "shop.orders") as table:
        assert reported(table) == whole | {"offset": "truncate(16)"}
