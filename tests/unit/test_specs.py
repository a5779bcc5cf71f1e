"""Under which partition spec an archive is filed, and who changed a spec."""

from __future__ import annotations

import uuid

import pytest

from archiver.catalog.table_layout import (
    PARTITION_BY,
    left_by_us,
    named_granularity,
    newest_spec,
    spec_id_of,
    stream_fields,
)
from archiver.catalog.tables import SpecView, TableView
from archiver.objects.paths import Granularity, archive_key
from archiver.runtime.errors import Halt
from tests.support.catalog.tables import TOPIC_ID, data_file, schema_json

DAY, HOUR, OTHER, HOUR_AGAIN = (
    SpecView(0, "day", 1000),
    SpecView(1, "hour", 1001),
    SpecView(2, None, 0),
    SpecView(5, "hour", 1001),
)


def table(*specs: SpecView, default: int = 0, left: str | None = None) -> TableView:
    properties = {} if left is None else {PARTITION_BY: left}
    granularity = {spec.spec_id: spec.granularity for spec in specs}.get(default)
    return TableView(
        ("a", "b"),
        uuid.UUID(int=1),
        "",
        "",
        schema_json(),
        0,
        2,
        default,
        granularity,
        None,
        0,
        properties,
        (),
        specs=specs,
    )


def filed(view: TableView, path: str, spec_id: int) -> int:
    return spec_id_of(view, data_file(path, stream_fields(schema_json()), 0, 0, 10, spec_id=spec_id))


def path_of(granularity: Granularity) -> str:
    return f"s3://bucket/archive/prefix/{archive_key(TOPIC_ID, 0, granularity, 600, 0, 10, 1)}"


@pytest.mark.parametrize(
    ("granularity", "spec_id", "wanted"),
    [
        ("day", 0, 0),
        ("hour", 1, 1),
        ("hour", 0, 5),
        ("day", 1, 0),
        ("day", 2, 0),
        ("hour", 5, 5),
        ("hour", 77, 5),
    ],
)
def test_the_name_decides(granularity: Granularity, spec_id: int, wanted: int) -> None:
    assert filed(table(DAY, HOUR, OTHER, HOUR_AGAIN), path_of(granularity), spec_id) == wanted


def test_the_default_spec_is_taken_before_a_newer_one() -> None:
    assert newest_spec(table(DAY, HOUR, HOUR_AGAIN, default=1), "hour") == HOUR
    assert newest_spec(table(DAY, HOUR, HOUR_AGAIN, default=0), "hour") == HOUR_AGAIN
    assert newest_spec(table(DAY), "month") is None


@pytest.mark.parametrize(
    ("path", "spec_id"), [(path_of("month"), 0), ("file:///x.parquet", 3), ("file:///x.parquet", 2)]
)
def test_what_fits_no_spec_is_not_filed(path: str, spec_id: int) -> None:
    with pytest.raises(Halt, match="the table has no such spec"):
        filed(table(DAY, HOUR, OTHER), path, spec_id)


def test_a_file_without_such_a_name_has_the_spec_that_it_says() -> None:
    assert named_granularity("file:///x.parquet") is None
    assert filed(table(DAY, HOUR), "file:///x.parquet", 1) == 1


def test_what_we_left_is_the_property_or_else_the_first_spec() -> None:
    assert left_by_us(table(HOUR, DAY, default=1)) == "day"
    assert left_by_us(table(DAY, HOUR, default=1, left="hour")) == "hour"
    assert left_by_us(table()) is None
