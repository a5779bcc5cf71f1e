"""The changes of a topic's columns by a newer schema, for plans and messages.

`What` is the closed list of changes to a column. `evolve` decides; this module only describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

What = Literal[
    "added",
    "dropped",
    "restored",
    "renamed",
    "widened",
    "new_column",
    "unchanged_column",
    "message",
    "envelope",
]
"""added: a new field gets a column · dropped: the field is gone, its column stays and reads null from here on
· restored: the field gets a former column again · renamed: the column has another name and the same rows ·
widened: the column's type holds more, its rows are the same · new_column: the field's new type does not fit
its column, so it gets an additional one · unchanged_column: the bytes of the field differ (presence, packed,
oneof, enum values, Protobuf type) and its column is the same · message: the key or value is another message,
or now has a schema or none · envelope: the registry ids of the message differ. The last two are of the whole
key or value."""

WHATS: Final[tuple[What, ...]] = get_args(What)
"""All of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a topic's newest recorded schema and the one that follows."""

    side: Literal["key", "value"]
    path: str
    """Field numbers from the top, as in "3/1": the keys of `SourceSchema.field_ids`. Empty: the whole key or
    value."""
    field: str
    """Names of the Protobuf fields from the top, as in "customer.address". Of a dropped field as it was
    called last. Empty: the whole."""
    what: What
    column: str
    """Names of columns from the top, as in "value.customer.address_v2", as they are after the change."""
    field_id: int | None
    """Iceberg's id of the column; None for `message` and `envelope`."""
    was: str
    """Before: the column's name for `renamed`, its type for `dropped`, `widened` and `new_column` (of the
    former column), else what differs, in words. Empty where there was nothing."""
    now: str
    """After: as `was`; the column's type for `added`, `restored` and `new_column`."""
    why: str
    """One sentence for people: what this means for old and new records, and where it is no more than the
    change says, empty."""
    compatible: bool
    """Whether earlier records and queries keep their meaning. False: a column is no longer filled because the
    type does not fit (`new_column`), or the new schema reads records of the former one differently or not at
    all."""


Policy = Literal["evolve", "compatible", "refuse"]
"""evolve: every change is applied · compatible: an incompatible one halts the topic · refuse: each change of
a message halts it."""


def is_allowed(policy: Policy, changes: Sequence[Change]) -> bool:
    """Whether changes of a topic's schema are applied under a policy.

    Other registry ids alone are no change of a message: each registered version has one, also if only a
    comment differs.
    """
    if policy == "refuse":
        return all(one.what == "envelope" for one in changes)
    return policy == "evolve" or all(one.compatible for one in changes)
