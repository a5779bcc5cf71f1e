"""NaN, infinities and zeros: no statistic of an archive lets a reader skip rows that match."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.query import duck
from archiver.query.duck import QueryTable
from archiver.refine.task import RefineOptions
from archiver.schema.columns import arrow_schema_of
from archiver.schema.evolution.state import bounded_columns, decide
from archiver.schema.protobuf.descriptors import Source
from tests.support.builders.compacting import at_noon, compact
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.refining import NOW, refine
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.floats import NAN, SAMPLES, sample, sampled

INF = math.inf
LIMITS = duck.Limits(2**28, 1)
COLUMNS = ("value.celsius", "value.ratio", "value.sensor.level")
FILTERS = {
    "isnan({0})": 1,
    "{0} > 100": 1,
    "{0} = 'NaN'::DOUBLE": 1,
    "NOT ({0} <= 2.0)": 1,
    "{0} >= 'NaN'::DOUBLE": 1,
    "{0} NOT BETWEEN 0 AND 5": 1,
    "{0} <= 2.0": 2,
    "NOT isnan({0})": 2,
    "{0} < -100": 0,
}
"""Filters of 1.0, NaN and 2.0 as DuckDB counts them where no statistics are: NaN is above every number."""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return sampled(tmp_path / "d", cleanup={"compact_bytes": 2**27})


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        yield made


def send(driver: Driver, *values: float) -> None:
    """Send these values as one archive."""
    driver.send("orders", [sample(value) for value in values], 0)
    assert driver.archive().exit_code == 0


def counted(deployment: Deployment, *columns: str) -> dict[tuple[str, str], int]:
    """Rows by column and filter, as `archiver query` counts them."""
    asked = [(column, text) for column in columns for text in FILTERS]
    filters = ", ".join(
        f"(SELECT count(*) FROM shop.orders WHERE {text.format(column)})" for column, text in asked
    )
    done = deployment.cli(
        "query",
        f"SELECT [{filters}] AS counts, max({columns[0]}) AS most FROM shop.orders",
        "--output",
        "json",
    )
    assert done.code == 0, done.err
    (row,) = done.json()["rows"]
    assert row["most"] == "NaN"
    return dict(zip(asked, map(int, row["counts"]), strict=True))


def right(*columns: str) -> dict[tuple[str, str], int]:
    return {(column, text): count for column in columns for text, count in FILTERS.items()}


def statistics(path: Path) -> dict[str, list[Any]]:
    """Statistics by column, one for each row group."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    paths = [groups[0].column(index).path_in_schema for index in range(metadata.num_columns)]
    return {name: [group.column(index).statistics for group in groups] for index, name in enumerate(paths)}


def data_files(deployment: Deployment) -> list[Any]:
    with catalog_table(deployment, "shop.orders") as table:
        return [task.file for task in table.scan().plan_files()]


def test_queries_find_nan_in_fresh_archives(deployment: Deployment, driver: Driver) -> None:
    send(driver, 1.0, NAN, 2.0)
    assert counted(deployment, *COLUMNS) == right(*COLUMNS)
    (file,) = data_files(deployment)
    found = statistics(Path(file.file_path.removeprefix("file://")))
    assert all(one is None for name in COLUMNS for one in found[name])
    assert all(one.has_min_max for one in found["kafka.offset"])


def test_no_bounds_where_a_column_holds_nan_and_exact_ones_elsewhere(
    deployment: Deployment, driver: Driver
) -> None:
    send(driver, 1.0, NAN, 2.0)
    send(driver, -INF, 3.0, INF)
    send(driver, 0.0, -0.0)
    send(driver, NAN, NAN)
    with catalog_table(deployment, "shop.orders") as table:
        ids = {name: table.schema().find_field(name).field_id for name in COLUMNS}
        files = sorted((task.file for task in table.scan().plan_files()), key=lambda file: file.file_path)
        for name, form in zip(COLUMNS, ("<d", "<f", "<d"), strict=True):
            found = [
                tuple(
                    None if ids[name] not in of else struct.unpack(form, of[ids[name]])[0]
                    for of in (file.lower_bounds, file.upper_bounds)
                )
                for file in files
            ]
            assert [str(one) for one in found] == [
                "(None, None)",
                "(-inf, inf)",
                "(-0.0, 0.0)",
                "(None, None)",
            ]
            nans = [(file.nan_value_counts or {}).get(ids[name]) for file in files]
            assert nans == [1, 0, 0, None], (
                "Iceberg would skip a file of NaN alone for `> 100`, which Spark and DuckDB say of NaN"
            )
            assert [file.null_value_counts[ids[name]] for file in files] == [0] * 4
        counts = [
            ("value.celsius is nan", 3, 2),
            ("value.celsius > 2.5", 2, 3),
            ("value.celsius < 0.5", 3, 4),
            ("value.celsius = 0.0", 2, 4),
        ]
        for one, count, planned in counts:
            assert len(table.scan(row_filter=one).to_arrow()) == count, one
            assert (
                len({task.file.file_path for task in table.scan(row_filter=one).plan_files()}) == planned
            ), one


def test_a_merged_archive_has_no_statistics_of_nan(deployment: Deployment, driver: Driver) -> None:
    at_noon(driver)
    for value in (1.0, NAN, 2.0):
        send(driver, value)
    driver.clock.ahead_s += 2 * 86_400
    done = compact(driver)
    assert done.merged == 1, done
    (file,) = data_files(deployment)
    assert file.record_count == 3
    assert counted(deployment, *COLUMNS) == right(*COLUMNS)
    with catalog_table(deployment, "shop.orders") as table:
        ids = {table.schema().find_field(name).field_id for name in COLUMNS}
    assert not ids & set(file.lower_bounds)
    assert {file.nan_value_counts[one] for one in ids} == {1}


@pytest.mark.parametrize("row_group_rows", [1, 2, 100])
@pytest.mark.parametrize("values", [(1.0, NAN, 2.0), (NAN, 1.0, 2.0), (1.0, 2.0, NAN)])
def test_nan_in_any_row_group_takes_the_bounds_away(
    tmp_path: Path, values: Sequence[float], row_group_rows: int
) -> None:
    intake = Intake(LocalObjectStore(tmp_path / "data"))
    topic = intake.topic("orders")
    intake.file(
        {(topic, 0): [Row(NOW, sample(value, sensor=index == 0)) for index, value in enumerate(values)]}
    )
    schema = decide("orders", (), None, Source("lab.Sample", SAMPLES)).schema
    options = RefineOptions(row_group_rows=row_group_rows, decode_rows=1)
    (file,) = refine(intake, intake.plans(topic), schema=schema, options=options)[0].files
    ids = {column.dotted: column.field_id for column in bounded_columns(schema)}
    lower, nulls = file.data_file.lower_bounds or {}, file.data_file.null_value_counts or {}
    assert ids["value.celsius"] not in lower
    assert ids["value.ratio"] not in lower
    assert (ids["value.sensor.level"] in lower) is not math.isnan(values[0]), (
        "a value under a null message is none"
    )
    assert (nulls[ids["value.celsius"]], nulls[ids["value.sensor.level"]]) == (0, 2)
    assert (file.data_file.nan_value_counts or {})[ids["value.celsius"]] == 1


def test_archives_from_before_are_queried_rightly(tmp_path: Path) -> None:
    """A file as older versions wrote it, with a minimum and a maximum that leave NaN out; and the same one
    without field ids."""
    fields = [{"id": 2, "name": "celsius", "required": False, "type": "double"}]
    value = {"id": 1, "name": "value", "required": False, "type": {"type": "struct", "fields": fields}}
    schema = {"type": "struct", "fields": [value]}
    arrow = arrow_schema_of(schema)
    table = pa.Table.from_pylist([{"value": {"celsius": one}} for one in (1.0, NAN, 2.0)], schema=arrow)
    by_id, by_name = tmp_path / "id.parquet", tmp_path / "name.parquet"
    pq.write_table(table, by_id, store_schema=False)
    bare = pa.Table.from_pylist(
        table.to_pylist(),
        schema=pa.schema([pa.field("value", pa.struct([pa.field("celsius", pa.float64())]))]),
    )
    pq.write_table(bare, by_name)
    assert [statistics(path)["value.celsius"][0].max for path in (by_id, by_name)] == [2.0, 2.0]
    for path in (by_id, by_name):
        asked = QueryTable("shop", "orders", json.dumps(schema), (str(path),))
        for text, count in FILTERS.items():
            sql = f"SELECT count(*) FROM shop.orders WHERE {text.format('value.celsius')}"
            with duck.asked(sql, [asked], LIMITS) as result:
                assert list(result.rows) == [(count,)], (path, text)
