"""Hypothesis strategies for control events of every kind, with partition fields of every type Iceberg has."""

from __future__ import annotations

import decimal
from typing import Any

from hypothesis import strategies as st

from archiver.events.types import (
    CommitComplete,
    CommitToTable,
    DataComplete,
    DataFile,
    DataWritten,
    Event,
    PartitionField,
    StartCommit,
    TableReference,
    TopicPartitionOffset,
)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Any characters, those beyond the basic plane and control characters included."""

_TYPES = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "timestamp_ns",
    "timestamptz_ns",
]
_TYPES += ["string", "uuid", "binary", "fixed[5]", "decimal(9, 2)", "decimal(38, 0)"]

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": INTS,
    "date": INTS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXTS,
    "uuid": st.uuids(),
    "binary": st.binary(max_size=12),
    "fixed[5]": st.binary(min_size=5, max_size=5),
    "decimal(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1).map(
        lambda unscaled: decimal.Decimal(unscaled).scaleb(-2)
    ),
    "decimal(38, 0)": st.integers(-(10**38) + 1, 10**38 - 1).map(decimal.Decimal),
}


@st.composite
def partition_fields(draw: st.DrawFn) -> tuple[PartitionField, ...]:
    """Up to five fields; a prefix keeps their names apart after Avro's rewriting."""
    kinds = draw(st.lists(st.sampled_from(_TYPES), max_size=5))
    names = [f"p{at}_{draw(TEXTS)}" for at in range(len(kinds))]
    return tuple(
        PartitionField(1000 + at, name, kind)
        for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
    )


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def _map(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _maybe(st.dictionaries(INTS, values, max_size=3))


def data_files(fields: tuple[PartitionField, ...]) -> st.SearchStrategy[DataFile]:
    """Files whose tuples fit the fields."""
    return st.builds(
        DataFile,
        path=TEXTS,
        record_count=LONGS,
        file_size=LONGS,
        content=st.integers(0, 2),
        file_format=st.sampled_from(["PARQUET", "AVRO", "ORC", "PUFFIN"]),
        spec_id=INTS,
        partition=st.tuples(*(_maybe(_VALUES.get(one.type, LONGS)) for one in fields)),
        column_sizes=_map(LONGS),
        value_counts=_map(LONGS),
        null_value_counts=_map(LONGS),
        nan_value_counts=_map(LONGS),
        lower_bounds=_map(st.binary(max_size=9)),
        upper_bounds=_map(st.binary(max_size=9)),
        key_metadata=_maybe(st.binary(max_size=9)),
        split_offsets=_maybe(st.lists(LONGS, max_size=3).map(tuple)),
        equality_ids=_maybe(st.lists(INTS, max_size=3).map(tuple)),
        sort_order_id=_maybe(INTS),
        first_row_id=_maybe(LONGS),
        referenced_data_file=_maybe(TEXTS),
        content_offset=_maybe(LONGS),
        content_size=_maybe(LONGS),
    )


_TABLES = st.builds(TableReference, TEXTS, st.lists(TEXTS, max_size=3).map(tuple), TEXTS, _maybe(st.uuids()))
_OFFSETS = st.builds(TopicPartitionOffset, TEXTS, INTS, _maybe(LONGS), _maybe(LONGS))


@st.composite
def events(draw: st.DrawFn) -> tuple[Event, tuple[PartitionField, ...]]:
    """An event with the partition fields of its files (none for other payloads)."""
    fields: tuple[PartitionField, ...] = draw(partition_fields())
    files = _maybe(st.lists(data_files(fields), max_size=2).map(tuple))
    payload: Any = draw(
        st.one_of(
            st.builds(StartCommit, st.uuids()),
            st.builds(DataWritten, st.uuids(), _TABLES, files, files),
            st.builds(DataComplete, st.uuids(), _maybe(st.lists(_OFFSETS, max_size=3).map(tuple))),
            st.builds(CommitToTable, st.uuids(), _TABLES, _maybe(LONGS), _maybe(LONGS)),
            st.builds(CommitComplete, st.uuids(), _maybe(LONGS)),
        )
    )
    event = Event(draw(st.uuids()), draw(LONGS), draw(TEXTS), payload)
    return event, fields if isinstance(payload, DataWritten) else ()
