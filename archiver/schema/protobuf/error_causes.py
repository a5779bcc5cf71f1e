"""The causes of undecodable keys and values: a few names for counting, next to the readable `__err__`.

Every text of `__err__` has exactly one cause. A record's own text never becomes a cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from archiver.schema.protobuf.tree import ERR

Cause = Literal["malformed", "not_utf8", "time_range", "unknown_schema", "other_message", "too_many_values"]
"""malformed: no message of that type (cut off, of another type, nested too deeply), or a registry envelope
that is cut off · not_utf8: a text field that is not UTF-8 · time_range: a timestamp outside the years 1 to
9999 · unknown_schema: the envelope's schema id is none of the topic's subject · other_message: the envelope
names another message of that schema · too_many_values: its decoded form would have more values than one
record may have (`archiver.schema.protobuf.decoded_size`)."""
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
OUT_OF_YEARS: Final = "is outside the years 1 to 9999"
"""Ending of the engines' reason for a timestamp that does not fit a column."""
NO_SUBJECT_ID: Final = "is not one of the topic's subject"
"""Ending of the reason for an unknown schema id."""
OTHER_MESSAGE: Final = "is not the topic's message"
"""Ending of the reason for message indexes of another message."""
TOO_MANY_VALUES: Final = "values in one record are not decoded"
"""Ending of the reason for a record that becomes too large when it is decoded."""
TOO_MANY_FIELDS: Final = "fields and list elements in one record are not checked (intake.elements_max)"
"""Ending of the reason for a record whose check at intake would take too long."""
OTHER_TYPE: Final = "correct the producer, or permit both types"
"""Ending of the reason for a JSON value of another type than its schema's. Such a record is malformed."""
TWO_MEMBERS: Final = "which of the two counts is not defined"
"""Ending of the reason for a JSON object with a name twice. Such a record is malformed."""
CUT_ENVELOPE: Final = "is cut off or damaged"
"""Part of every reason for a damaged envelope. Such a record is malformed."""

_ENDINGS: Final[Mapping[str, Cause]] = {
    OUT_OF_YEARS: "time_range",
    NO_SUBJECT_ID: "unknown_schema",
    OTHER_MESSAGE: "other_message",
    TOO_MANY_VALUES: "too_many_values",
    TOO_MANY_FIELDS: "too_many_values",
    # Named although they are malformed in any case: the text before them may quote a name of the record.
    OTHER_TYPE: "malformed",
    TWO_MEMBERS: "malformed",
}


def cause_of(why: str) -> Cause:
    """The cause behind a text of `__err__`."""
    # Only the ending: the text before it may quote names and numbers of the record.
    for ending, cause in _ENDINGS.items():
        if why.endswith(ending):
            return cause
    # The text comes from the Protobuf library or from Python, so only the encoding's name is common.
    return "not_utf8" if "utf-8" in why.lower() else "malformed"


def count_errors(batch: pa.RecordBatch, into: Counter[tuple[str, str]]) -> None:
    """Add how many keys and values of an archive's rows could not be decoded, by (`key` or `value`,
    cause).
    """
    for side in ("key", "value"):
        column: Any = batch.column(side)
        # A topic without a schema has no `__err__`.
        if column.type.get_field_index(ERR) < 0:
            continue
        errors = column.field(ERR)
        if errors.null_count < len(errors):
            for why in errors.drop_null().to_pylist():
                into[side, cause_of(why)] += 1


def unknown_from(batch: pa.RecordBatch, offset: int) -> tuple[int, str] | None:
    """Offset and reason of the first row from `offset` on whose key or value has a schema id that is none of
    the subject's.
    """
    found: list[tuple[int, str]] = []
    kafka: Any = batch.column("kafka")
    offsets = kafka.field("offset")
    for side in ("key", "value"):
        column: Any = batch.column(side)
        if column.type.get_field_index(ERR) < 0 or column.field(ERR).null_count == len(column):
            continue
        for row, why in enumerate(column.field(ERR).to_pylist()):
            if why is not None and cause_of(why) == "unknown_schema" and offsets[row].as_py() >= offset:
                found.append((offsets[row].as_py(), why))
                # Rows are in offset order, so the first one of this side is enough.
                break
    return min(found, default=None)


def cause_counts(counts: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Counts as a document has them: `value:malformed` and how many, without zeros."""
    return {f"{side}:{cause}": number for (side, cause), number in sorted(counts.items()) if number}
