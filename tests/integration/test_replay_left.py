"""Archives that a replay must leave unchanged, and that do not block others: real log, ledger, store and SQL
catalog.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from archiver.refine.plan_writer import TopicRows
from intake.records import Record
from tests.integration.test_replay import _customer_as_bytes
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.undecoded import NEVER, files_of_table, replay, rows_in_table, send_unmended
from tests.support.schema.orders import order


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def test_a_topic_that_lost_its_schema_is_not_replayed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing decodes without a schema, and the columns of what did decode are not emptied."""
    with Driver(deployment) as driver:
        send_unmended(driver, monkeypatch)
    document, files = deployment.document(), files_of_table(deployment)
    document["topics"][0].pop("value")
    deployment.write(document)
    with Driver(deployment) as other:
        planned, done = replay(other, dry_run=True), replay(other)
        assert [(one.state, one.archives, one.decoded, one.left) for one in (planned, done)] == [
            ("idle", 0, 0, 5)
        ] * 2
        assert files_of_table(deployment) == files
        assert done.why is not None and "5 values (no schema)" in done.why


def test_the_command_says_why_it_left_records(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [NEVER, NEVER, order(0)], 0)
        driver.archive()
    why = (
        "orders: not decoded with schema version 1: 2 values (malformed); the table keeps the bytes in "
        "`__raw__`, so nothing is lost"
    )
    for options in (["--dry-run"], []):
        done = deployment.cli("dlq", "replay", "--topic", "orders", *options)
        assert (done.code, why in done.out.splitlines(), "not decoded" in done.err) == (0, True, False)


def test_columns_that_do_not_give_the_records_back_are_not_stored(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values of two rows are exchanged on the way into the new file, while the old file is correct."""
    with Driver(deployment) as driver:
        send_unmended(driver, monkeypatch)
        before, files, true = driver.records("orders"), files_of_table(deployment), TopicRows.build
        keys = {info.key for info in driver.application.objects.list("archive/")}

        def swapped(self: TopicRows, partitions: Any, records: pa.RecordBatch) -> pa.RecordBatch:
            built = true(self, partitions, records)
            values = built.column("value").take(pa.array([1, 0, *range(2, built.num_rows)]))
            return built.set_column(
                built.schema.get_field_index("value"), built.schema.field("value"), values
            )

        with monkeypatch.context() as patch:
            patch.setattr(TopicRows, "build", swapped)
            done = replay(driver)
        assert (done.state, done.archives, done.left) == ("idle", 0, 5)
        assert "rewritten it would not give its records back" in done.skipped[0]["why"]
        assert (files_of_table(deployment), driver.records("orders")) == (files, before)
        assert {info.key for info in driver.application.objects.list("archive/")} == keys
        assert list(driver.application.objects.spool_dir().iterdir()) == []
        assert replay(driver).archives == 1


def test_a_key_that_decodes_now_empties_no_value(deployment: Deployment) -> None:
    document = deployment.document()
    schema = document["topics"][0].pop("value")
    keyed = document["topics"][0] | {"key": schema}
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        sent = [writer.send("orders", Record(order(0).replace(b"ada", b"\xff\xfe\xfd"), order(0)), 0)]
        writer.flush()
        assert [one.result(30) for one in sent]
    deployment.write(document | {"topics": [keyed | {"value": schema}, *document["topics"][1:]]})
    with Driver(deployment) as driver:
        driver.archive()
    deployment.write(document | {"topics": [keyed, *document["topics"][1:]]})
    (deployment.root / "shop.binpb").write_bytes(_customer_as_bytes())
    with Driver(deployment) as driver:
        done = replay(driver)
        assert (done.archives, "value columns would be emptied" in done.skipped[0]["why"]) == (0, True)
        assert rows_in_table(deployment)[0, 0]["customer"] == "ada"


def test_an_archive_that_stays_takes_no_room_of_those_behind_it(deployment: Deployment) -> None:
    """The first archive would have fewer rows decoded, each time; the second one is rewritten even so."""
    bad = order(1, lines=0).replace(b"ada", b"\xff\xfe\xfd")
    mended = descriptor_pb2.FileDescriptorSet.FromString(_customer_as_bytes())
    sku = mended.file[0].message_type[0].field[0]
    sku.type, sku.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, ".shop.Order"
    with Driver(deployment) as driver:
        driver.send("orders", [order(0, lines=1), bad], 0)
        driver.send("orders", [order(0, lines=0), bad], 1)
        driver.archive()
        (deployment.root / "shop.binpb").write_bytes(mended.SerializeToString())
        done = replay(driver, 1)
        assert (done.archives, done.more, [item["partition"] for item in done.ranges]) == (1, False, [1])
        assert "decoded now would not be" in done.skipped[0]["why"]
