"""`query` finds columns by field id: files of different schema versions in one view. Files without ids are
read by name."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.query.columns import columns_by_id
from archiver.query.duck import Limits, QueryTable, asked
from archiver.runtime.errors import ConfigInvalid, Halt
from archiver.schema.columns import Json, arrow_schema_of

LIMITS = Limits(256 * 2**20, 1)


def column(number: int, name: str, kind: str | Json) -> Json:
    return {"id": number, "name": name, "required": False, "type": kind}


def struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def list_of(number: int, element: str | Json) -> Json:
    return {"type": "list", "element-id": number, "element": element, "element-required": False}


def map_of(key_id: int, key: str, value_id: int, value: str | Json) -> Json:
    return {
        "type": "map",
        "key-id": key_id,
        "key": key,
        "value-id": value_id,
        "value": value,
        "value-required": False,
    }


def file(path: Path, schema: Json, rows: list[dict[str, Any]]) -> str:
    """A Parquet file as archives are written, with field ids at every level."""
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema_of(schema)), path, store_schema=False)
    return str(path)


def ask(schema: Json, files: list[str], sql: str = "SELECT * FROM n.t") -> list[Any]:
    with asked(sql, [QueryTable("n", "t", json.dumps(schema), tuple(files))], LIMITS) as result:
        return list(result.rows)


OLD = struct(
    column(1, "k", "int"),
    column(
        2,
        "value",
        struct(
            column(3, "a", "int"),
            column(4, "b", "string"),
            column(5, "f", "float"),
            column(6, "d", "decimal(9, 2)"),
            column(7, "l", list_of(8, struct(column(9, "x", "int"), column(10, "y", "string")))),
            column(
                11, "m", map_of(12, "string", 13, struct(column(14, "p", "int"), column(15, "q", "float")))
            ),
            column(16, "gone", "string"),
            column(17, "inner", struct(column(18, "z", "int"))),
            column(19, "numbers", list_of(20, "int")),
        ),
    ),
)
NEW = struct(
    column(1, "key_number", "long"),
    column(
        2,
        "value",
        struct(
            column(4, "a", "string"),  # the names of 3 and 4 are swapped
            column(3, "b", "long"),
            column(30, "f", "boolean"),  # another field has the former name of 5
            column(5, "f_old", "double"),
            column(6, "d", "decimal(18, 2)"),
            column(
                7,
                "lines",
                list_of(
                    8, struct(column(10, "x", "string"), column(31, "y", "long"), column(9, "count", "long"))
                ),
            ),
            column(
                11,
                "m",
                map_of(
                    12,
                    "string",
                    13,
                    struct(column(15, "q", "double"), column(32, "r", "string"), column(14, "pp", "long")),
                ),
            ),
            column(17, "inner", struct(column(33, "new", "string"), column(18, "z", "long"))),
            column(19, "numbers", list_of(20, "long")),
        ),
    ),
    column(34, "added", list_of(35, "string")),
)
OLD_ROWS: list[dict[str, Any]] = [
    {
        "k": 1,
        "value": {
            "a": 7,
            "b": "seven",
            "f": 0.5,
            "d": Decimal("1.25"),
            "l": [{"x": 1, "y": "one"}, None, {"x": None, "y": None}],
            "m": [("m", {"p": 5, "q": 0.25}), ("n", None)],
            "gone": "gone",
            "inner": {"z": 3},
            "numbers": [1, None, -(2**31)],
        },
    },
    {"k": 2, "value": None},
    {"k": 3, "value": dict.fromkeys(("a", "b", "f", "d", "l", "m", "gone", "inner", "numbers"))},
    {
        "k": 4,
        "value": {
            "a": 0, "b": "", "f": 0.0, "d": Decimal(0), "l": [], "m": [], "gone": "", "inner": {"z": None}, "numbers": [],
        },
    },
]  # fmt: skip
NEW_ROWS: list[dict[str, Any]] = [
    {
        "key_number": 2**40,
        "value": {
            "a": "text",
            "b": 2**41,
            "f": True,
            "f_old": 0.1,
            "d": Decimal("1234567890.12"),
            "lines": [{"x": "new", "y": 2**42, "count": 2**43}],
            "m": [("o", {"q": 0.2, "r": "r", "pp": 2**44})],
            "inner": {"new": "n", "z": 2**45},
            "numbers": [2**46],
        },
        "added": ["yes"],
    }
]
READ = [
    (
        1,
        {
            "a": "seven",
            "b": 7,
            "f": None,
            "f_old": 0.5,
            "d": Decimal("1.25"),
            "lines": [{"x": "one", "y": None, "count": 1}, None, {"x": None, "y": None, "count": None}],
            "m": {"m": {"q": 0.25, "r": None, "pp": 5}, "n": None},
            "inner": {"new": None, "z": 3},
            "numbers": [1, None, -(2**31)],
        },
        None,
    ),
    (2, None, None),
    (3, dict.fromkeys(("a", "b", "f", "f_old", "d", "lines", "m", "inner", "numbers")), None),
    (
        4,
        {
            "a": "", "b": 0, "f": None, "f_old": 0.0, "d": Decimal("0.00"), "lines": [], "m": {}, "inner": {"new": None, "z": None},
            "numbers": [],
        },
        None,
    ),
    (2**40, {**NEW_ROWS[0]["value"], "m": {"o": {"q": 0.2, "r": "r", "pp": 2**44}}}, ["yes"]),
]  # fmt: skip


def evolved(folder: Path) -> list[str]:
    return [file(folder / "old.parquet", OLD, OLD_ROWS), file(folder / "new.parquet", NEW, NEW_ROWS)]


def test_renamed_swapped_reused_added_dropped_widened_and_moved_at_every_level(tmp_path: Path) -> None:
    assert ask(NEW, evolved(tmp_path), "SELECT * FROM n.t ORDER BY key_number") == READ


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("value.a = 'seven'", [1]),
        ("value.b = 7", [1]),
        ("value.b < 1000000000000", [1, 4]),
        ("value.b > 1000000000000", [2**40]),
        ("value.f", [2**40]),
        ("value.f IS NULL", [1, 2, 3, 4]),
        ("value.f_old = 0.5", [1]),
        ("value.d > 1 AND value.d < 2", [1]),
        ("value.inner.z = 3", [1]),
        ("value.inner.new IS NULL AND value IS NOT NULL", [1, 3, 4]),
        ("value IS NULL", [2]),
        ("added IS NULL", [1, 2, 3, 4]),
        ("len(value.lines) > 0", [1, 2**40]),
        ("value.m['m'].pp = 5", [1]),
        ("key_number BETWEEN 2 AND 3", [2, 3]),
    ],
)
def test_conditions_mean_the_tables_columns_not_the_files(
    tmp_path: Path, where: str, expected: list[int]
) -> None:
    sql = f"SELECT key_number FROM n.t WHERE {where} ORDER BY 1"
    assert [row[0] for row in ask(NEW, evolved(tmp_path), sql)] == expected


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    assert ask(NEW, evolved(tmp_path)[::-1], "SELECT * FROM n.t ORDER BY key_number") == READ


def test_a_table_that_went_back_to_its_old_names(tmp_path: Path) -> None:
    """The newest files do not have to resemble the table's schema."""
    narrow = struct(
        column(1, "k", "long"),
        column(2, "value", struct(column(3, "a", "long"), column(16, "gone", "string"))),
    )
    assert ask(narrow, evolved(tmp_path), "SELECT k, value FROM n.t WHERE k = 1 OR k > 4 ORDER BY k") == [
        (1, {"a": 7, "gone": "gone"}),
        (2**40, {"a": 2**41, "gone": None}),
    ]


def test_files_without_ids_are_read_by_name(tmp_path: Path) -> None:
    """They are mixed with files that have ids, in a folder whose name is a glob pattern."""
    folder = tmp_path / "a [1] folder*"
    folder.mkdir()
    files = evolved(folder)
    bare = pa.table({"key_number": [9], "value": [{"a": "bare", "b": 1, "gone": "unseen"}], "more": [1]})
    pq.write_table(bare, folder / "bare[0].parquet")
    files.append(str(folder / "bare[0].parquet"))
    found = ask(
        NEW,
        files,
        "SELECT key_number, value.a, value.b, value.d, added FROM n.t WHERE key_number IN (1, 9) ORDER BY 1",
    )
    assert found == [(1, "seven", 7, Decimal("1.25"), None), (9, "bare", 1, None, None)]
    assert len(ask(NEW, files)) == 6
    assert ask(NEW, files[2:], "SELECT value.a FROM n.t") == [("bare",)]


def test_names_that_need_quotes(tmp_path: Path) -> None:
    old = struct(column(1, "it's", struct(column(2, 'a "b", c', "int"))), column(3, "select", "int"))
    new = struct(column(1, 'it"s', struct(column(2, "d'); e", "int"))), column(3, "from", "int"))
    found = ask(new, [file(tmp_path / "f.parquet", old, [{"it's": {'a "b", c': 1}, "select": 2}])])
    assert found == [({"d'); e": 1}, 2)]


def test_a_column_with_a_default_is_refused() -> None:
    with pytest.raises(Halt, match="column added has a default value"):
        columns_by_id(
            json.dumps(struct(column(1, "k", "int"), {**column(2, "added", "int"), "initial-default": 5}))
        )


def test_a_file_that_is_none_of_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"not Parquet, but long enough to look for a footer in it")
    with pytest.raises(Halt, match="a table cannot be opened"):
        ask(OLD, [str(tmp_path / "x.parquet")])


def test_an_old_duckdb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duckdb.__version__", "1.5.2")
    with pytest.raises(ConfigInvalid, match=r"needs DuckDB 2.0 or newer, this is 1.5.2"):
        ask(OLD, [])
