"""Validates records before they are queued: accept, accept with an envelope, refuse, or send to a DLQ topic.

A null key or value passes. No byte of a key or value changes, except for the envelope that `coerce` prepends.
Records keep their order. Pure, except for the call of the judge. A record must never pass because its schema
could not be fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.runtime.errors import RecordRefused
from archiver.runtime.text import counted
from intake.arrow_arrays import (
    ArrowArray,
    Int64Array,
    binary_lengths,
    header_lengths,
    list_array,
    list_lengths,
)
from intake.records import HEADER_COST_BYTES, HEADERS, RECORD_SCHEMA, NormalBatch, Record

Side = Literal["key", "value"]

HEADER_PREFIX = "archiver.dlq."
"""Prefix of the headers that a record gets on its way to a DLQ topic."""
ERROR_SHOWN_MAX = 1000
"""Characters of the reason in such a header."""


@dataclass(frozen=True, slots=True)
class SideRules:
    """Validation rules for the keys, or the values, of a topic."""

    validation: Literal["none", "reject", "dlq"] = "none"
    coerce: bool = False
    """Whether a message without an envelope gets one."""
    dlq: str | None = None
    """With `dlq`: the topic for records that do not decode."""
    origin: object = None
    """Source of the schema. If it changes, the schema is fetched again."""

    @property
    def is_checked(self) -> bool:
        """Whether payloads are inspected at all."""
        return self.validation != "none" or self.coerce


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a record is not stored in the topic it was sent to."""

    side: Side
    error: str
    """As in the column `__err__`."""
    cause: str
    """One of `archiver.schema.protobuf.error_causes`."""
    dlq: str | None
    """The topic it goes to; None: it is refused."""

    def __str__(self) -> str:
        return f"{self.side}: {self.error}"


@dataclass(frozen=True, slots=True)
class Judged:
    """Keys and values to store, and the rows that violate the schema."""

    keys: ArrowArray
    """The object that was passed in, if nothing changed; `values` likewise."""
    values: ArrowArray
    findings: Mapping[int, Violation]


class Judge(Protocol):
    """Checks records against the schemas of their topics. Thread-safe."""

    def checks(self, topic: str) -> bool:
        """Whether records of the topic are checked."""

    def judge(self, topic: str, keys: ArrowArray, values: ArrowArray, wait_s: float) -> Judged | None:
        """Check binary columns of one length against the topic's schemas; None if the topic is not checked.

        Waits up to `wait_s` for an unknown schema. Raises `RetryLater` if the schema stays unknown.
        """

    def elsewhere(self, topic: str) -> Sequence[str]:
        """The DLQ topics of that topic."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """One record after validation: its topic, partition and content."""

    topic: str
    partition: int
    record: Record
    refused: str | None = None
    """Why the record is not stored."""


PartitionsOf = Callable[[str], int]
"""The number of partitions of an existing topic."""


def admit(
    judge: Judge,
    topic: str,
    records: Sequence[Record],
    partitions: Sequence[int],
    wait_s: float,
    partitions_of: PartitionsOf,
) -> list[Admitted]:
    """Validate records of one topic; raises as `Judge.judge` and `partitions_of`."""
    keys = pa.array([record.key for record in records], pa.binary())
    values = pa.array([record.value for record in records], pa.binary())
    judged = judge.judge(topic, keys, values, wait_s)
    if judged is None:
        return [
            Admitted(topic, partition, record) for record, partition in zip(records, partitions, strict=True)
        ]
    # Identity is enough: the judge returns the same objects if nothing changed.
    if judged.keys is not keys or judged.values is not values:
        payloads = zip(judged.keys.to_pylist(), judged.values.to_pylist(), strict=True)
        records = [
            replace(record, key=key, value=value)
            for record, (key, value) in zip(records, payloads, strict=True)
        ]
    admitted: list[Admitted] = []
    for row, (record, partition) in enumerate(zip(records, partitions, strict=True)):
        finding = judged.findings.get(row)
        if finding is None or finding.dlq is None:
            admitted.append(
                Admitted(topic, partition, record, None if finding is None else refusal(topic, finding))
            )
            continue
        # The DLQ topic may have fewer partitions; the modulo keeps the number where possible.
        headers = (*record.headers, *dlq_headers(topic, partition, finding))
        admitted.append(
            Admitted(finding.dlq, partition % partitions_of(finding.dlq), replace(record, headers=headers))
        )
    return admitted


def admit_all(
    judge: Judge, records: Sequence[Admitted], wait_s: float, partitions_of: PartitionsOf
) -> list[Admitted]:
    """Validate records of any topics, in their order; raises as `admit`."""
    admitted = list(records)
    # One call per topic, because the judge works on columns of one schema.
    for topic in sorted({one.topic for one in records}):
        if judge.checks(topic):
            rows = [row for row, one in enumerate(records) if one.topic == topic]
            given = [records[row].record for row in rows], [records[row].partition for row in rows]
            for row, one in zip(rows, admit(judge, topic, *given, wait_s, partitions_of), strict=True):
                admitted[row] = one
    return admitted


def dlq_headers(topic: str, partition: int, finding: Violation) -> list[tuple[str, bytes]]:
    """Headers that say where a record in a DLQ topic came from, and why."""
    said = (
        ("topic", topic),
        ("partition", str(partition)),
        ("error", str(finding)[:ERROR_SHOWN_MAX]),
        ("cause", f"{finding.side}:{finding.cause}"),
    )
    # A lone surrogate in the error text has no UTF-8 form.
    return [(f"{HEADER_PREFIX}{name}", text.encode("utf-8", "replace")) for name, text in said]


def refusal(topic: str, finding: Violation) -> str:
    """The message for the sender of a refused record."""
    return f"{finding}; topic {topic} takes no such record, and this one is not stored"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch that go to the same topic."""

    rows: Int64Array
    """Their indexes in the batch of the call."""
    batches: Sequence[NormalBatch]
    placed: Sequence[npt.NDArray[np.int32]]
    """The partitions, per batch."""

    @property
    def partitions(self) -> npt.NDArray[np.int32]:
        """The partitions of all rows."""
        return np.concatenate(self.placed) if self.placed else np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Divided:
    """A batch divided by validation."""

    here: Rows
    """Rows that go to the topic they were sent to."""
    elsewhere: Mapping[str, Rows]
    """Rows that go to DLQ topics, by topic name."""
    refused: Mapping[int, Violation]
    left_out: Int64Array
    """The rows of `SentAgain.unnumbered` that are not among the refused."""

    @property
    def found(self) -> Int64Array:
        """The rows that do not decode and are not left out."""
        moved = [part.rows for part in self.elsewhere.values()]
        return np.concatenate([np.fromiter(self.refused, np.int64, len(self.refused)), *moved])


@dataclass(frozen=True, slots=True)
class SentAgain:
    """Known facts about the rows of a batch whose sequence numbers are stated."""

    in_log: npt.NDArray[np.bool_]
    """The log has passed their numbers, so it stores none of them again: they are not validated."""
    unnumbered: npt.NDArray[np.bool_]
    """They had no number, so they are not sent."""


def divide(
    judge: Judge | None,
    topic: str,
    batches: Sequence[NormalBatch],
    placed: Sequence[npt.NDArray[np.int32]],
    wait_s: float,
    partitions_of: PartitionsOf,
    again: SentAgain | None = None,
) -> Divided | None:
    """Divide a batch; None if all of it is stored unchanged. Without a judge no record is checked. Raises as
    `admit`.
    """
    here: list[tuple[Int64Array, NormalBatch, npt.NDArray[np.int32]]] = []
    elsewhere: dict[str, list[tuple[Int64Array, NormalBatch, npt.NDArray[np.int32]]]] = {}
    refused: dict[int, Violation] = {}
    left_out = np.zeros(0, np.int64) if again is None else np.flatnonzero(again.unnumbered)
    as_it_is, first = not len(left_out), 0
    for batch, partitions in zip(batches, placed, strict=True):
        rows = np.arange(first, first + len(partitions), dtype=np.int64)
        first += len(partitions)
        keys, values = batch.columns.column("key"), batch.columns.column("value")
        judged = (None if judge is None else judge.judge(topic, keys, values, wait_s)) or Judged(
            keys, values, {}
        )
        findings, going_out = judged.findings, np.zeros(len(rows), bool)
        if again is not None:
            # A repetition is not stored again, so a finding about it has no effect.
            findings = {row: finding for row, finding in findings.items() if not again.in_log[rows[row]]}
            going_out = again.unnumbered[rows]
        changed = judged.keys is not keys or judged.values is not values
        as_it_is = as_it_is and not findings and not changed
        rest = [batch.columns.column(name) for name in ("headers", "event_timestamp")]
        # An added envelope changes the sizes.
        going = _measured([judged.keys, judged.values, *rest]) if changed else batch
        good = ~going_out
        # Every row with a finding leaves this topic: it is refused or goes to a DLQ topic.
        good[list(findings)] = False
        here.append(_chosen(going, rows, partitions, good))
        refused |= {int(rows[row]): finding for row, finding in findings.items() if finding.dlq is None}
        moving = {
            row: finding
            for row, finding in sorted(findings.items())
            # A row that is left out is not sent at all, also not to a DLQ topic.
            if finding.dlq is not None and not going_out[row]
        }
        for name in sorted({finding.dlq for finding in moving.values() if finding.dlq is not None}):
            found = {row: finding for row, finding in moving.items() if finding.dlq == name}
            chosen = np.zeros(len(partitions), bool)
            chosen[list(found)] = True
            theirs, moved, numbers = _chosen(going, rows, partitions, chosen)
            headers = [dlq_headers(topic, int(partitions[row]), finding) for row, finding in found.items()]
            elsewhere.setdefault(name, []).append(
                (theirs, _with_headers(moved, headers), numbers % partitions_of(name))
            )
    # The usual case: the caller queues its own columns without a copy.
    if as_it_is:
        return None
    # A row that is refused again is reported as refused.
    left_out = left_out[~np.isin(left_out, list(refused))]
    return Divided(_rows(here), {name: _rows(parts) for name, parts in elsewhere.items()}, refused, left_out)


def refuse_whole(topic: str, refused: Mapping[int, Violation]) -> None:
    """Raise `RecordRefused` if a row is refused, for batches that are stored completely or not at all."""
    if refused:
        row = min(refused)
        more = "" if len(refused) == 1 else f" ({counted(len(refused), 'row')} of the batch are so)"
        raise RecordRefused(
            f"row {row}: {refused[row]}; topic {topic} takes no such record{more}, and nothing of the "
            "batch was sent"
        )


class RowsRefused(RecordRefused):
    """Rows of a received batch are invalid, so nothing of the batch is stored."""

    def __init__(self, why: str, rows: Mapping[int, str]) -> None:
        super().__init__(why)
        self.rows = rows
        """Per invalid row, why."""


def refuse_rows(topic: str, refused: Mapping[int, Violation]) -> None:
    """Raise `RowsRefused` if a row is refused."""
    if refused:
        reasons = {row: refusal(topic, finding) for row, finding in refused.items()}
        row = min(reasons)
        raise RowsRefused(f"record {row}: {reasons[row]}; nothing of the batch is stored", reasons)


def _with_headers(batch: NormalBatch, added: Sequence[Sequence[tuple[str, bytes]]]) -> NormalBatch:
    """The batch with further headers in each row."""
    # Python objects are acceptable: only rows that do not decode come here.
    before: list[list[dict[str, object]]] = batch.columns.column("headers").to_pylist()  # type: ignore[assignment]
    lists = [
        own + [{"key": name, "value": value} for name, value in more]
        for own, more in zip(before, added, strict=True)
    ]
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in lists]))).astype(np.int32)
    entries = pa.array([pair for one in lists for pair in one], HEADERS.value_type)
    columns = [batch.columns.column(name) for name in RECORD_SCHEMA.names]
    columns[RECORD_SCHEMA.get_field_index("headers")] = list_array(offsets, entries, HEADERS)
    return _measured(columns)


def _measured(columns: Sequence[ArrowArray]) -> NormalBatch:
    key, value, headers, _ = columns
    raw_bytes = binary_lengths(key) + binary_lengths(value) + header_lengths(headers)
    weights = raw_bytes + HEADER_COST_BYTES * list_lengths(headers)
    return NormalBatch(
        pa.RecordBatch.from_arrays(list(columns), schema=RECORD_SCHEMA), raw_bytes, weights, None
    )


def _chosen(
    batch: NormalBatch, rows: Int64Array, partitions: npt.NDArray[np.int32], mask: npt.NDArray[np.bool_]
) -> tuple[Int64Array, NormalBatch, npt.NDArray[np.int32]]:
    if mask.all():
        return rows, batch, partitions
    columns = batch.columns.filter(pa.array(mask))
    return (
        rows[mask],
        NormalBatch(columns, batch.raw_bytes[mask], batch.weights[mask], None),
        partitions[mask],
    )


def _rows(parts: Sequence[tuple[Int64Array, NormalBatch, npt.NDArray[np.int32]]]) -> Rows:
    # Empty parts would become pieces without rows in the queue.
    kept = [part for part in parts if len(part[0])]
    rows = np.concatenate([part[0] for part in kept]) if kept else np.zeros(0, np.int64)
    return Rows(rows, [part[1] for part in kept], [part[2] for part in kept])
