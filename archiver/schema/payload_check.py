"""Checks payloads against a topic's schema before they are stored: whether they decode, and their envelopes.

`EdgeCheck` has the same result as `RecordCodec`, without its columns. It also refuses a record with more
fields and list elements than `elements_max`, because checking it would take too long. Payloads are checked in
pieces of bounded size. Thread-safe: one thread decodes at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.codec import emptied
from archiver.schema.envelope import opened
from archiver.schema.evolution.state import arrow_schema, column_tree, decide
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.decoded_size import Counts, Meter, portions, refusal_of
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.protobuf.error_causes import TOO_MANY_FIELDS, Cause, cause_of
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, Kind, MessageTree
from archiver.schema.side_reader import side_reader

PIECE_BYTES = 8 * 2**20
"""Bytes of payloads that are decoded at a time."""
ELEMENTS_MAX = 1_000_000
"""Most fields and list elements of one record, by default."""
FEW_ROWS = 32
"""So few rows go to the complete engine, which starts faster than the fast one."""
_MAGIC = b"\x00"
_ID_END = 5
"""End of an envelope's schema id."""


@dataclass(frozen=True)
class Checked:
    """The result for some payloads."""

    errors: Mapping[int, str]
    """Row to reason, as in `__err__`."""
    unknown_ids: Mapping[int, int]
    """Rows whose envelope has a schema id that the schema does not know, and the id."""

    def cause(self, row: int) -> Cause:
        """Why the row does not decode."""
        return cause_of(self.errors[row])


class EdgeCheck:
    """Checks the keys or the values of a topic."""

    def __init__(
        self,
        source: Source,
        complete: bool = True,
        newest_id: int | None = None,
        elements_max: int = ELEMENTS_MAX,
    ) -> None:
        """`complete`: whether the source's envelope has every id that a record can have. `newest_id`: the id
        that `coerced` writes, by default the highest. Raises ConfigInvalid for a message that is not mapped.
        """
        self.source = source
        self.complete = complete
        self._newest_id = newest_id
        self._elements_max = elements_max
        # Engines are not safe for several threads.
        self._lock = threading.Lock()
        # Only the types of the columns matter here, so a first version serves for every topic.
        schema = decide("edge", (), None, source).schema
        assert schema.value is not None, "the source is the value's"
        extra = (RAW, PREFIX, ERR)
        columns = pa.struct(
            [one for one in arrow_schema(schema).field("value").type if one.name not in extra]
        )
        tree = column_tree(schema.value, schema.schema()["fields"][1]["type"])
        self._reader = None if source.format == "protobuf" else side_reader(source, tree, columns, "ptars")
        self._protobuf = None if self._reader is not None else _ProtobufCheck(tree, columns)
        # A version that does not have the message has no indexes for it.
        ids = (
            {}
            if source.envelope is None
            else {
                number: indexes
                for number, indexes in source.envelope.ids
                if indexes or not source.envelope.indexed
            }
        )
        # The short encoding of each envelope. Other valid encodings take the general check.
        self._heads = {head[:_ID_END]: head for head in (envelope_of(*one) for one in ids.items())}
        newest = newest_id if newest_id in ids else max(ids, default=None)
        self._head = None if newest is None else envelope_of(newest, ids[newest])

    def is_for(self, source: Source, complete: bool, newest_id: int | None = None) -> bool:
        """Whether it was made from these arguments."""
        return (self.source, self.complete, self._newest_id) == (source, complete, newest_id)

    def check(self, payloads: Array) -> Checked:
        """The faults of binary payloads; nulls are valid."""
        with self._lock:
            return self._checked(payloads)

    def _checked(self, payloads: Array) -> Checked:
        errors: dict[int, str] = {}
        unknown: dict[int, int] = {}
        protobuf = self._protobuf
        if protobuf is not None and len(payloads) <= FEW_ROWS and self._check_few(protobuf, payloads, errors):
            return Checked(errors, unknown)
        lengths = pc.fill_null(pc.binary_length(payloads), 0).to_numpy(zero_copy_only=False)
        sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        start = 0
        while start < len(payloads):
            # A payload over the limit is a piece of its own.
            end = max(start + 1, int(np.searchsorted(sums, sums[start] + PIECE_BYTES, side="right")) - 1)
            self._check(payloads.slice(start, end - start), start, errors, unknown)
            start = end
        return Checked(errors, unknown)

    def coerced(self, payloads: Array, checked: Checked) -> Array:
        """The payloads, with an envelope before those that decode and have none; the same object if that is
        none of them.
        """
        if self._head is None:
            return payloads
        # As in `check`: for few rows Python objects are quicker than Arrow calls.
        if len(payloads) <= FEW_ROWS:
            given = payloads.to_pylist()
            few = [
                self._head + payload
                if payload is not None and payload[:1] != _MAGIC and row not in checked.errors
                else payload
                for row, payload in enumerate(given)
            ]
            return payloads if few == given else arrow.array(few, pa.binary())
        bare = pc.and_(
            payloads.is_valid(), pc.invert(pc.fill_null(pc.starts_with(payloads, pattern=_MAGIC), True))
        )
        if checked.errors:
            fine = np.ones(len(payloads), bool)
            fine[list(checked.errors)] = False
            bare = pc.and_(bare, arrow.array(fine))
        if not pc.any(bare, min_count=0).as_py():
            return payloads
        enveloped = pc.binary_join_element_wise(
            arrow.scalar(self._head, pa.binary()), payloads, arrow.scalar(b"", pa.binary())
        )
        return pc.if_else(bare, enveloped, payloads)

    def _check_few(self, protobuf: _ProtobufCheck, payloads: Array, errors: dict[int, str]) -> bool:
        """Check payloads one by one; False if one has an envelope that needs a closer check."""
        messages: dict[int, bytes] = {}
        for row, payload in enumerate(payloads.to_pylist()):
            if payload is None:
                continue
            if self.source.envelope is not None and payload[:1] == _MAGIC:
                head = self._heads.get(payload[:_ID_END])
                if head is None or not payload.startswith(head):
                    # The general check knows the other encodings, and gives the reason.
                    return False
                messages[row] = payload[len(head) :]
            else:
                messages[row] = payload
        # A second loop, so that a False result leaves no errors behind.
        for row, message in messages.items():
            why = self._too_many(protobuf, message) or protobuf.few_error(message)
            if why is not None:
                errors[row] = why
        return True

    def _too_many(self, protobuf: _ProtobufCheck, message: bytes) -> str | None:
        """Why a message is too large to be decoded, or takes too long to be checked."""
        why = protobuf.meter.too_many(message)
        if why is None and protobuf.elements.values(message, self._elements_max) > self._elements_max:
            why = self._too_long()
        return why

    def _too_long(self) -> str:
        return f"cannot be decoded as {self.source.message}: more than {self._elements_max} {TOO_MANY_FIELDS}"

    def _check(self, payloads: Array, first: int, errors: dict[int, str], unknown: dict[int, int]) -> None:
        rows = np.arange(first, first + len(payloads))
        if payloads.null_count:
            # Row numbers of the batch, because the nulls are dropped from the payloads.
            rows = rows[payloads.is_valid().to_numpy(zero_copy_only=False)]
            payloads = payloads.drop_null()
        prefixes = arrow.nulls(len(payloads), pa.binary())
        if self.source.envelope is not None:
            found = opened(payloads, self.source.envelope)
            for row, why in found.errors.items():
                errors[int(rows[row])] = f"cannot be decoded as {self.source.message}: {why}"
                if cause_of(why) == "unknown_schema":
                    unknown[int(rows[row])] = int.from_bytes(payloads[row].as_py()[1:_ID_END], "big")
            payloads, prefixes = found.messages, found.prefixes
        large = dict.fromkeys(self._beyond(payloads, prefixes, self._elements_max), self._too_long())
        refused = dict.fromkeys(self._beyond(payloads, prefixes, None), refusal_of(self.source.message))
        large.update(refused)
        for row, why in large.items():
            errors.setdefault(int(rows[row]), why)
        if large:
            # Their reason is known, and decoding them could take gigabytes of memory.
            payloads = emptied(payloads, list(large))
        for start, end in portions(len(payloads), [self._bounds(payloads)]):
            part = start, end - start
            for row, why in self._errors(payloads.slice(*part), prefixes.slice(*part)).items():
                # An earlier reason counts: rows with a damaged envelope are empty messages here.
                errors.setdefault(int(rows[start + row]), why)

    def _beyond(self, payloads: Array, prefixes: Array, elements_max: int | None) -> list[int]:
        """The rows with more elements, or (None) with too many values to be decoded."""
        if self._reader is not None:
            return self._reader.beyond(payloads, prefixes, elements_max)
        assert self._protobuf is not None
        if elements_max is not None:
            return self._protobuf.elements.beyond(payloads, elements_max)
        return self._protobuf.meter.beyond(payloads)

    def _bounds(self, payloads: Array) -> Counts | None:
        if self._reader is not None:
            return self._reader.bounds(payloads)
        assert self._protobuf is not None
        return self._protobuf.meter.bounds(payloads)

    def _errors(self, payloads: Array, prefixes: Array) -> Mapping[int, str]:
        if self._reader is not None:
            return self._reader.errors(payloads, prefixes)
        assert self._protobuf is not None
        return self._protobuf.many.errors(payloads)


class _ProtobufCheck:
    """The engines and meters for Protobuf messages."""

    def __init__(self, tree: MessageTree, columns: pa.StructType) -> None:
        # Imported only here: the complete engine works where ptars cannot be installed.
        from archiver.schema.protobuf.ptars_engine import PtarsEngine

        self.few = ProtobufEngine(tree, columns)
        self.many = PtarsEngine(tree, columns)
        self.meter, self.elements = Meter(tree), Meter(tree, columns=False)
        self._parsing_tells = _parsing_tells(tree)

    def few_error(self, message: bytes) -> str | None:
        """Why a message does not decode."""
        return self.few.refusal(message) if self._parsing_tells else self.few.error_of(message)


def _parsing_tells(tree: MessageTree) -> bool:
    """Whether every payload that the parser accepts fits the columns."""
    for one in tree.fields:
        if (
            one.kind is Kind.TIMESTAMP
            or one.json is not None
            or not (one.message is None or _parsing_tells(one.message))
        ):
            return False
    return True


def envelope_of(schema_id: int, indexes: Sequence[int]) -> bytes:
    """The envelope of a message, in the short spelling where there is one. Without indexes: of a format that
    has none.
    """
    if not indexes:
        return _MAGIC + schema_id.to_bytes(_ID_END - 1, "big")
    numbers = bytearray()
    # A single 0 stands for the list [0], the first message of the schema.
    for number in (0,) if tuple(indexes) == (0,) else (len(indexes), *indexes):
        # Zigzag encoding; none of the numbers is negative.
        rest = number << 1
        while rest >= 0x80:
            numbers.append(rest & 0x7F | 0x80)
            rest >>= 7
        numbers.append(rest)
    return _MAGIC + schema_id.to_bytes(_ID_END - 1, "big") + bytes(numbers)
