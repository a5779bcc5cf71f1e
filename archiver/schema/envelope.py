"""Registry envelopes: the bytes before a message that name its schema.

An envelope is a byte 0, the schema id as 4 bytes big-endian, and the message indexes (their count, then each,
as zigzag varints). A payload without a leading byte 0 has no envelope and stays unchanged. Removed bytes are
restored exactly, in any encoding. No Python code runs per row while the envelopes of a batch have few
encodings; in any case a row is inspected a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.protobuf.descriptors import Envelope
from archiver.schema.protobuf.error_causes import CUT_ENVELOPE, NO_SUBJECT_ID, OTHER_MESSAGE
from archiver.schema.splice import Rows, picked, spliced

_ID_END, _INDEXES_MAX, _VARINT_MAX = 5, 100, 5
"""End of the schema id; deepest nesting of message types; bytes of a 32-bit varint."""
_SPELLINGS_MAX, _GROUPED_MAX = 64, 16
"""Above this number of different envelopes, or this length, rows are inspected one by one. Grouping them for
every byte takes minutes."""
_END = 2**31 - 1
"""Beyond the end of every payload. (Without an end, pyarrow fails on arrays of many rows.)"""


@dataclass(frozen=True)
class ParsedEnvelope:
    """Payloads without their envelopes."""

    messages: Array
    """Empty where the envelope is an error."""
    prefixes: Array
    """The envelopes as they were; null without one, and where it is an error."""
    errors: Mapping[int, str]
    """Row to reason."""


def opened(payloads: Array, envelope: Envelope) -> ParsedEnvelope:
    """Remove the envelopes (no nulls)."""
    if not envelope.indexed:
        return _opened_plain(payloads, frozenset(number for number, _ in envelope.ids), envelope.bare)
    ids = dict(envelope.ids)
    rows = np.arange(len(payloads), dtype=np.int64)
    # No Protobuf message begins with a byte 0, because there is no field number 0.
    enveloped = pc.starts_with(payloads, pattern=b"\x00").to_numpy(zero_copy_only=False)
    if not enveloped.any():
        return ParsedEnvelope(payloads, arrow.nulls(len(payloads), pa.binary()), {})
    parts: list[tuple[Rows, bytes]] = []
    errors: dict[int, str] = {}
    # Rows are grouped by their first bytes, one more in each step, until every group is decided.
    todo = [(_ID_END, rows[enveloped])]
    while todo:
        length, open_rows = todo.pop()
        more: list[Rows] = []
        for head, here in _by_head(payloads, open_rows, length):
            verdict = _verdict(head, length, ids)
            if verdict is None:
                more.append(here)
            elif isinstance(verdict, str):
                errors.update(dict.fromkeys(here.tolist(), verdict))
            else:
                parts.append((here, head))
        if len(more) > _SPELLINGS_MAX or (more and length >= _GROUPED_MAX):
            # Sorted, because `picked` needs ascending rows.
            _one_by_one(payloads, np.sort(np.concatenate(more)), ids, parts, errors)
        elif more:
            todo.append((length + 1, np.sort(np.concatenate(more))))
    bad = np.array(sorted(errors), np.int64)
    free = rows[~enveloped]
    messages = [(here, pc.binary_slice(picked(payloads, here), len(head), _END)) for here, head in parts]
    messages += [(free, picked(payloads, free)), (bad, _repeated(b"", len(bad)))]
    prefixes = [(here, _repeated(head, len(here))) for here, head in parts]
    prefixes += [(free, _repeated(None, len(free))), (bad, _repeated(None, len(bad)))]
    return ParsedEnvelope(spliced(messages), spliced(prefixes), errors)


def _opened_plain(payloads: Array, ids: frozenset[int], bare: bool) -> ParsedEnvelope:
    """Envelopes without indexes. Unless `bare`, every payload must have one: the datum after it may begin
    with any byte.
    """
    heads = pc.binary_slice(payloads, 0, _ID_END)
    empty, none = arrow.scalar(b"", pa.binary()), arrow.scalar(None, pa.binary())
    free = pc.invert(pc.starts_with(payloads, pattern=b"\x00")) if bare else None
    if free is not None and not pc.any(free, min_count=0).as_py():
        free = None
    if free is not None:
        heads = pc.if_else(free, none, heads)
    codes = heads.dictionary_encode()
    why = [_plain_error(head, ids) for head in codes.dictionary.to_pylist()]
    messages, prefixes = pc.binary_slice(payloads, _ID_END, _END), codes.dictionary.take(codes.indices)
    if free is not None:
        messages = pc.if_else(free, payloads, messages)
    if not any(why):
        return ParsedEnvelope(messages, prefixes, {})
    # The last place is that of payloads without an envelope.
    places = pc.fill_null(codes.indices, len(why)).to_numpy()
    wrong = np.array([*(one is not None for one in why), False], np.bool_)[places]
    errors = {row: text for row in np.flatnonzero(wrong).tolist() if (text := why[places[row]]) is not None}
    mask = arrow.array(wrong)
    return ParsedEnvelope(pc.if_else(mask, empty, messages), pc.if_else(mask, none, prefixes), errors)


def _plain_error(head: bytes, ids: frozenset[int]) -> str | None:
    """What is wrong with the beginning of a payload."""
    if head[:1] not in (b"\x00", b""):
        return f"it has no registry envelope: its first byte is {head[0]}, not 0"
    if len(head) < _ID_END:
        return f"its registry envelope {CUT_ENVELOPE}, after {len(head)} bytes"
    schema_id = int.from_bytes(head[1:], "big")
    return (
        None
        if schema_id in ids
        else f"its registry envelope has schema id {schema_id}, which {NO_SUBJECT_ID}"
    )


def _one_by_one(
    payloads: Array,
    rows: Rows,
    ids: Mapping[int, tuple[int, ...]],
    parts: list[tuple[Rows, bytes]],
    errors: dict[int, str],
) -> None:
    """Check the envelopes of these rows (ascending), whose ids are known: into `parts` or `errors`."""
    found: dict[bytes, list[int]] = {}
    # No envelope is longer: a count, and at most that many indexes.
    longest = _ID_END + (1 + _INDEXES_MAX) * _VARINT_MAX
    for row, start in zip(
        rows.tolist(), pc.binary_slice(picked(payloads, rows), 0, longest).to_pylist(), strict=True
    ):
        length = _length(start)
        head = start[:length]
        verdict = _verdict(head, length, ids)
        if isinstance(verdict, str):
            errors[row] = verdict
        else:
            found.setdefault(head, []).append(row)
    parts += [(np.array(here, np.int64), head) for head, here in found.items()]


def _length(payload: bytes) -> int:
    """Bytes of a payload that decide whether its envelope is valid; more than exist if it is truncated."""
    at, left, counted = _ID_END, 1, False
    while left:
        start = at
        while True:
            if at >= len(payload):
                # More than there are, so that `_verdict` reports a truncated envelope.
                return len(payload) + 1
            at += 1
            if payload[at - 1] < 0x80:
                break
            if at - start >= _VARINT_MAX:
                return at
        left -= 1
        if not counted:
            numbers = _indexes(payload[_ID_END:at])
            # A count of 0, which no index follows, or an invalid one.
            if numbers is not None:
                return at
            # The count is a zigzag varint, so its value is half of it.
            value = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(payload[_ID_END:at]))
            left, counted = value >> 1, True
    return at


def _by_head(payloads: Array, rows: Rows, length: int) -> list[tuple[bytes, Rows]]:
    """The rows (ascending) by the first `length` bytes of their payloads."""
    heads = pc.binary_slice(picked(payloads, rows), 0, length).dictionary_encode()
    if len(heads.dictionary) == 1:
        # Most batches have a single envelope, and need no grouping.
        return [(heads.dictionary[0].as_py(), rows)]
    codes = heads.indices.to_numpy()
    # Stable, so that the rows of a group stay ascending.
    order = np.argsort(codes, kind="stable")
    groups = np.split(rows[order], np.cumsum(np.bincount(codes))[:-1])
    return list(zip(heads.dictionary.to_pylist(), groups, strict=True))


def _repeated(value: bytes | None, count: int) -> Array:
    return arrow.repeat(arrow.scalar(value, pa.binary()), count)


def _verdict(head: bytes, length: int, ids: Mapping[int, tuple[int, ...]]) -> bool | str | None:
    """The result for the first `length` bytes of a payload: a whole envelope (True), an error, or None if
    more bytes are needed.
    """
    # The payload is shorter than the part of the envelope that is needed.
    if len(head) < length:
        return f"its registry envelope {CUT_ENVELOPE}, after {len(head)} bytes"
    schema_id = int.from_bytes(head[1:_ID_END], "big")
    # Before the indexes, which only mean something together with a known id.
    if schema_id not in ids:
        return f"its registry envelope has schema id {schema_id}, which {NO_SUBJECT_ID}"
    indexes = _indexes(head[_ID_END:])
    if indexes is None or isinstance(indexes, str):
        return indexes
    if indexes != ids[schema_id]:
        return (
            f"its registry envelope has message indexes {list(indexes)} of schema id {schema_id}, which "
            f"{OTHER_MESSAGE}"
        )
    return True


def _indexes(data: bytes) -> tuple[int, ...] | str | None:
    """The message indexes if `data` is exactly them, None if it is too short, a reason if it cannot become
    any.
    """
    numbers: list[int] = []
    at = 0
    while at < len(data):
        value, start = 0, at
        while True:
            if at - start >= _VARINT_MAX:
                return (
                    f"its registry envelope {CUT_ENVELOPE}: a message index is longer than {_VARINT_MAX} "
                    "bytes"
                )
            if at >= len(data):
                return None
            byte = data[at]
            value |= (byte & 0x7F) << (7 * (at - start))
            at += 1
            if byte < 0x80:
                break
        # Zigzag decoding: even values are positive, odd ones negative.
        numbers.append(value >> 1 ^ -(value & 1))
    if not numbers:
        return None
    count, found = numbers[0], tuple(numbers[1:])
    if not 0 <= count <= _INDEXES_MAX:
        return f"its registry envelope {CUT_ENVELOPE}: it has {count} message indexes"
    # Confluent's short form of the list [0].
    if count == 0:
        return (0,)
    return found if len(found) == count else None
