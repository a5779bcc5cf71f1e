"""`query`: values that cannot become Python values, and names that a query cannot distinguish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.config.topics import TopicArchiveSettings, TopicSettings
from archiver.query.duck import Limits, QueryTable, asked, query_tables
from archiver.runtime.errors import InvalidInput

LIMITS = Limits(256 * 2**20, 1)


def repeated_key(folder: Path) -> QueryTable:
    """A table of one row, whose map has the key `a` twice."""
    path = folder / "a.parquet"
    counts = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    pq.write_table(pa.table({"counts": counts}), path)
    kind = {
        "type": "map",
        "key-id": 2,
        "key": "string",
        "value-id": 3,
        "value": "int",
        "value-required": False,
    }
    schema = {"type": "struct", "fields": [{"id": 1, "name": "counts", "required": False, "type": kind}]}
    return QueryTable("n", "t", json.dumps(schema), (str(path),))


def test_a_map_with_a_repeated_key_is_an_invalid_input(tmp_path: Path) -> None:
    table = repeated_key(tmp_path)
    with (
        asked("SELECT counts FROM n.t", [table], LIMITS) as result,
        pytest.raises(InvalidInput, match=r"cannot be shown; cast it to text: .*'a'"),
    ):
        list(result.rows)
    with asked("SELECT counts::VARCHAR FROM n.t", [table], LIMITS) as result:
        assert list(result.rows) == [("{a=1, a=2}",)], "the way out that the message names"


def test_a_map_with_structs_as_keys_is_an_invalid_input() -> None:
    with (
        asked("SELECT MAP {{'a': 1}: 2}", [], LIMITS) as result,
        pytest.raises(InvalidInput, match="cannot be shown; cast it to text"),
    ):
        list(result.rows)


def never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("not needed for a name that is not unique")


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ([("lake", "shop.orders"), ("lake2", "shop.orders")], {"shop.orders"}),
        ([("lake", "shop.orders"), ("lake2", "shop.Orders")], {"shop.orders", "shop.Orders"}),
        ([("lake", "shop.orders"), ("lake", "shop.Orders")], {"shop.orders", "shop.Orders"}),
    ],
)
def test_tables_that_a_query_cannot_distinguish(tables: list[tuple[str, str]], named: set[str]) -> None:
    topics = [
        TopicSettings(
            name=f"topic-{number}",
            partitions=1,
            archive=TopicArchiveSettings(kind="iceberg", catalog=catalog, table=table),
        )
        for number, (catalog, table) in enumerate(tables)
    ]
    found, troubles = query_tables(topics, {"shop.orders"}, never, never, never)
    assert found == []
    assert set(troubles) == named
    for name, trouble in troubles.items():
        assert trouble.why.startswith(f"table {name} cannot be queried: several tables have that name")
        assert not trouble.gone
