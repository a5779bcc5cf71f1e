"""The interface to ptars: handlers for trees, and guarded calls.

Only this module imports ptars. Every failure of ptars (its errors, its panics) becomes `Failed`. It must not
get payloads over `ptars_engine.GUARDED_BYTES` that Protobuf's own parser has not accepted.
"""

from __future__ import annotations

from typing import Any

import ptars
import pyarrow as pa

from archiver.schema.arrow import Array
from archiver.schema.protobuf.tree import MessageTree
from archiver.schema.protobuf.wire import wire_descriptor


class Failed(Exception):
    """ptars did not process the batch."""


class Handler:
    """Decodes and encodes the wire form of one tree. Groups are not among what ptars reads: the tree must
    have no delimited fields.
    """

    def __init__(self, tree: MessageTree) -> None:
        descriptor = wire_descriptor(tree)
        self._handler: Any = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)
        self.schema: pa.Schema = self._handler.schema()
        """The wire form's Arrow types, fields in the order of the tree."""

    def decode(self, payloads: Array) -> list[Array]:
        """The message's fields. Raises Failed if any payload is refused."""
        columns: list[Array] = _guarded(self._handler.array_to_record_batch, payloads).columns
        return columns

    def encode(self, columns: list[Array]) -> Array:
        """Payloads from the message's fields, of the types of `schema` and at least one. Raises Failed."""
        return _guarded(
            self._handler.record_batch_to_array, pa.RecordBatch.from_arrays(columns, schema=self.schema)
        )


def _guarded(call: Any, argument: Any) -> Any:
    """Call into ptars; raises Failed for its errors and its panics (which are BaseExceptions of their own
    module).
    """
    try:
        return call(argument)
    except Exception as error:
        raise Failed(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Failed(f"panic: {error}") from error
