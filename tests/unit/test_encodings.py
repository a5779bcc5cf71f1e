"""Encodings are chosen for the values, and never change what a reader gets."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.refine.column_stats import leaves
from archiver.refine.encodings import ALONE_BYTES, ALONE_ROWS, ROWS_MIN, Encodings, SharedEncodings, chosen

ROWS = 2 * ROWS_MIN
RANDOM = np.random.default_rng(7)
DICTIONARY = "dictionary"
DELTA, PREFIX, LENGTHS = "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"


def numbered(field: pa.Field[Any], first: int = 1) -> pa.Field[Any]:
    """The field and its children, with field ids."""
    kind: Any = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([numbered(one, first * 10 + place) for place, one in enumerate(kind)])
    elif pa.types.is_map(kind):
        kind = pa.map_(numbered(kind.key_field, first * 10 + 1), numbered(kind.item_field, first * 10 + 2))
    elif pa.types.is_list(kind):
        kind = pa.list_(numbered(kind.value_field, first * 10 + 1))
    return pa.field(field.name, kind, field.nullable, metadata={"PARQUET:field_id": str(first)})


def batches_of(column: Any, name: str = "it", pieces: int = 3) -> list[pa.RecordBatch]:
    array: Any = column if isinstance(column, pa.Array) else pa.array(column)
    field = numbered(pa.field(name, array.type))
    whole = pa.RecordBatch.from_arrays([array.cast(field.type)], schema=pa.schema([field]))
    step = -(-len(array) // pieces)
    return [whole.slice(start, step) for start in range(0, len(array), step)]


def encoding_of(column: Any, name: str = "it") -> dict[str, str]:
    batches = batches_of(column, name)
    found = chosen(leaves(batches[0].schema), batches)
    return {**dict.fromkeys(found.dictionary, DICTIONARY), **found.others}


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        (np.arange(ROWS), DELTA),
        (RANDOM.integers(0, 1 << 40, ROWS), DELTA),
        (RANDOM.integers(1, 9, ROWS).astype(np.int32), DICTIONARY),
        (RANDOM.choice(RANDOM.integers(0, 1 << 60, 20), ROWS), DICTIONARY),
        (np.repeat(7, ROWS), DELTA),
        (np.sort(RANDOM.integers(0, 50, ROWS)), DELTA),
        (pa.array(RANDOM.integers(0, 1 << 50, ROWS), pa.timestamp("us", "UTC")), DELTA),
        (pa.array(RANDOM.integers(0, 5, ROWS).astype(np.int32)).cast(pa.date32()), DICTIONARY),
        (pa.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min] * (ROWS // 2)), DICTIONARY),
        (RANDOM.uniform(0, 1, ROWS), "PLAIN"),
        (RANDOM.random(ROWS) < 0.5, "PLAIN"),
        ([f"name-{number}" for number in RANDOM.integers(0, 100, ROWS)], DICTIONARY),
        # A sample has most of them once.
        (
            [f"name-{number:09}" for number in RANDOM.integers(0, 1500, ROWS)],
            DICTIONARY,
        ),
        ([f"name-{number:09}" for number in RANDOM.integers(0, 1500, ROWS // 4).tolist() * 4], DICTIONARY),
        # Too many bytes for a dictionary.
        (
            [f"name-{number:0999}" for number in RANDOM.integers(0, 1500, ROWS)],
            PREFIX,
        ),
        # Only some values are frequent at a time.
        (
            [
                f"id-{number // 20 + chance:09}"
                for number, chance in enumerate(RANDOM.integers(0, 300, ROWS).tolist())
            ],
            DICTIONARY,
        ),
        ([f"order-{number:09}" for number in range(ROWS)], PREFIX),
        ([f"{number:016x}" for number in RANDOM.integers(0, 1 << 60, ROWS)], "PLAIN"),
        ([f"abcd{number:016x}" for number in RANDOM.integers(0, 1 << 60, ROWS)], PREFIX),
        (
            [
                f"abc{number:016x}"[: 20 - number % 2 * 17]
                for number in RANDOM.integers(0, 1 << 60, ROWS).tolist()
            ],
            "PLAIN",
        ),
        ([f"{'a' * 300 * (number % 2)}{number:09}" for number in range(ROWS)], "PLAIN"),
        ([None] * ROWS_MIN + ["x"] * ROWS_MIN, DICTIONARY),
        (pa.nulls(ROWS, pa.string()), DICTIONARY),
        (pa.nulls(ROWS, pa.int64()), DELTA),
        ([b"x%d" % number for number in range(ROWS)], LENGTHS),
    ],
)
def test_a_column_gets_what_fits_its_values(column: Any, encoding: str) -> None:
    assert encoding_of(column) == {"it": encoding}


def test_keys_are_names_and_other_bytes_are_messages() -> None:
    keys = pa.StructArray.from_arrays(
        [pa.array([b"customer-%07d" % number for number in range(ROWS)])], names=["__raw__"]
    )
    assert encoding_of(keys, "key") == {"key.__raw__": PREFIX}
    assert encoding_of(keys, "value") == {"value.__raw__": LENGTHS}


def test_inside_of_lists_and_maps() -> None:
    rows: list[Any] = [
        {"tags": [("channel", state)] * (state % 2), "lines": [number * 1000 % 7919]}
        for number, state in enumerate(RANDOM.integers(0, 100, ROWS).tolist())
    ]
    kind = pa.struct(
        [pa.field("tags", pa.map_(pa.string(), pa.int64())), pa.field("lines", pa.list_(pa.int64()))]
    )
    assert encoding_of(pa.array(rows, kind)) == {
        "it.tags.key_value.key": DICTIONARY,
        "it.tags.key_value.value": DICTIONARY,
        "it.lines.list.element": DELTA,
    }


def test_few_rows_are_not_looked_at() -> None:
    names = [f"order-{number:09}" for number in range(ROWS_MIN - 1)]
    assert encoding_of(names) == {"it": DICTIONARY}
    assert encoding_of(RANDOM.integers(1, 9, ROWS_MIN - 1)) == {"it": DELTA}
    schema = batches_of(names)[0].schema
    assert chosen(leaves(schema), []) == Encodings(["it"], {})


@pytest.mark.parametrize("rest", [1, 3, 500])
def test_a_short_rest_does_not_decide(rest: int) -> None:
    names = [f"name-{number:09}" for number in RANDOM.integers(0, 1500, ROWS + rest)]
    (whole,) = batches_of(names, pieces=1)
    assert chosen(leaves(whole.schema), [whole.slice(0, ROWS), whole.slice(ROWS)]).dictionary == ["it"]


def test_batches_that_are_all_short_are_not_looked_at() -> None:
    batches = batches_of([f"order-{number:09}" for number in range(ROWS)], pieces=100)
    assert chosen(leaves(batches[0].schema), batches).dictionary == ["it"]


def test_the_last_batch_counts_too() -> None:
    """The first rows of a stream may differ from the rest."""
    names = ["same"] * ROWS_MIN + [f"order-{number:09}" for number in range(ROWS_MIN)]
    batches = batches_of(names, pieces=2)
    assert chosen(leaves(batches[0].schema), batches[:1]).dictionary == ["it"]
    assert chosen(leaves(batches[0].schema), batches).others == {"it": PREFIX}


@pytest.mark.parametrize("later", ["fits", "does not fit"])
def test_any_choice_gives_the_values_back(later: str) -> None:
    first = pa.table(
        {"n": RANDOM.integers(1, 9, ROWS), "s": [f"order-{number:09}" for number in range(ROWS)]}
    )
    odd = pa.table(
        {
            "n": RANDOM.integers(-(1 << 62), 1 << 62, ROWS),
            "s": [f"{number}" * 50 for number in RANDOM.integers(0, 9, ROWS)],
        }
    )
    schema = pa.schema([numbered(field, place) for place, field in enumerate(first.schema, 1)])
    table = pa.concat_tables([first, first if later == "fits" else odd]).cast(schema)
    found = chosen(leaves(schema), first.cast(schema).to_batches())
    assert found == Encodings(["n"], {"s": PREFIX})
    file = io.BytesIO()
    with pq.ParquetWriter(
        file,
        schema,
        use_dictionary=found.dictionary,  # type: ignore[arg-type]
        column_encoding=found.others,
    ) as writer:
        writer.write_table(table, row_group_size=ROWS)
    assert pq.read_table(file).equals(table.cast(pq.read_schema(file)))


def shared(encodings: SharedEncodings, column: Any) -> dict[str, str]:
    batches = batches_of(column)
    found = encodings.of(leaves(batches[0].schema), batches)
    return {**dict.fromkeys(found.dictionary, DICTIONARY), **found.others}


COUNTED = np.arange(ALONE_ROWS)


@pytest.mark.parametrize("rows", [1, ROWS_MIN, ALONE_ROWS - 1])
def test_small_archives_of_a_topic_share_a_choice(rows: int) -> None:
    encodings = SharedEncodings()
    assert shared(encodings, RANDOM.integers(1, 9, ROWS)) == {"it": DICTIONARY}
    assert shared(encodings, COUNTED[:rows]) == {"it": DICTIONARY}


def test_what_went_by_its_type_is_not_shared_with_what_is_looked_at() -> None:
    encodings = SharedEncodings()
    names = [f"order-{number:09}" for number in range(ROWS_MIN)]
    assert shared(encodings, names[: ROWS_MIN - 1]) == {"it": DICTIONARY}
    assert shared(encodings, names) == {"it": PREFIX}
    assert shared(encodings, ["one"] * ROWS_MIN) == {"it": PREFIX}


def test_a_large_archive_is_looked_at_by_itself_and_decides_for_no_other() -> None:
    encodings = SharedEncodings()
    assert shared(encodings, RANDOM.integers(1, 9, ALONE_ROWS - 1)) == {"it": DICTIONARY}
    assert shared(encodings, COUNTED[:ALONE_ROWS]) == {"it": DELTA}
    assert shared(encodings, COUNTED[: ALONE_ROWS - 1]) == {"it": DICTIONARY}


def test_few_large_rows_are_looked_at_by_themselves() -> None:
    encodings = SharedEncodings()
    assert shared(encodings, [f"order-{number:09}" for number in range(ROWS_MIN)]) == {"it": PREFIX}
    few = [f"{number % 9:01024}" for number in range(ALONE_BYTES // 1024)]
    assert shared(encodings, few[: -ROWS_MIN // 2]) == {"it": PREFIX}
    assert shared(encodings, few) == {"it": DICTIONARY}


def uncompressed_of(column: Any) -> frozenset[str]:
    batches = batches_of(column)
    return chosen(leaves(batches[0].schema), batches).uncompressed


@pytest.mark.parametrize(
    ("column", "dense"),
    [
        (RANDOM.integers(0, 1 << 40, ALONE_ROWS), True),
        (pa.array(RANDOM.integers(0, 1 << 50, ALONE_ROWS), pa.timestamp("us", "UTC")), True),
        (RANDOM.integers(0, 1 << 40, ALONE_ROWS - 1), False),
        (COUNTED, False),
        (np.where(COUNTED % 100, 0, RANDOM.integers(0, 1 << 60, ALONE_ROWS)), False),
        (pa.array(RANDOM.integers(0, 1 << 40, ALONE_ROWS), mask=COUNTED % 5 == 0), False),
        (RANDOM.uniform(0, 1, ALONE_ROWS), False),
        ([str(number) for number in RANDOM.integers(0, 1 << 60, ALONE_ROWS)], False),
    ],
    ids=["numbers", "times", "few", "counted", "seldom", "missing", "floating", "texts"],
)
def test_deltas_that_compression_makes_no_smaller_are_not_compressed(column: Any, dense: bool) -> None:
    assert uncompressed_of(column) == (frozenset({"it"}) if dense else frozenset())
