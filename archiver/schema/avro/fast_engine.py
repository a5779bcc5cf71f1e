"""The fast engine for Avro: whole batches by `lockstep`, doubtful records by the complete engine.

Columns, errors and bytes are those of `complete_engine`. A record is doubtful if a step failed in it, if it
holds a map with a key twice or a record beyond the recursion depth, or if its arrays are far longer than
those of its neighbours.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array
from archiver.schema.avro.complete_engine import AvroEngine
from archiver.schema.avro.lockstep import Lockstep
from archiver.schema.avro.lockstep_encoder import encode_rows
from archiver.schema.avro.model import Schema
from archiver.schema.avro.pairing import pair_schemas
from archiver.schema.protobuf.engine import Decoded
from archiver.schema.splice import picked, replaced

FEW_ROWS = 8
"""So few rows go to the complete engine, which needs no set-up for each step."""


class FastAvroEngine:
    """Decodes and encodes datums of one schema. Not thread-safe."""

    def __init__(self, writer: Schema, reader: Schema, message_type: pa.StructType) -> None:
        """As `AvroEngine`."""
        self._type = message_type
        self._plan = pair_schemas(writer, reader, message_type)
        self._lockstep = Lockstep(self._plan)
        self._complete = AvroEngine(writer, reader, message_type)

    @property
    def message_type(self) -> pa.StructType:
        """As in `Engine`."""
        return self._type

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """As in `Engine`."""
        if len(payloads) <= FEW_ROWS:
            return self._complete.decode(payloads)
        columns, doubtful = self._lockstep.decode(payloads)
        rows = np.flatnonzero(doubtful)
        if not len(rows):
            return Decoded(columns, {})
        found = self._complete.decode(picked(payloads, rows))
        errors = {int(rows[row]): why for row, why in found.errors.items()}
        return Decoded(replaced(columns, rows, found.columns), errors)

    def revise(self, payloads: pa.BinaryArray) -> Decoded:
        """As in `Engine`: nothing is left to find, so it gives the same."""
        return self.decode(payloads)

    def errors(self, payloads: pa.BinaryArray) -> dict[int, str]:
        """Why rows cannot be decoded."""
        return dict(self.decode(payloads).errors)

    def error_of(self, payload: bytes) -> str | None:
        """Why a payload cannot be decoded; None if it can be."""
        return self._complete.error_of(payload)

    def encode(self, columns: Array) -> Array:
        """As in `Engine`."""
        return encode_rows(self._plan, columns)
