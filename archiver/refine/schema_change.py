"""What a topic's `schema_change` setting allows of a newer schema, and the words for a change: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archiver.config.topics import TopicSettings
from archiver.runtime.errors import TopicHalted
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted
from archiver.schema.evolution.changes import Change, is_allowed
from archiver.schema.evolution.state import Decision, TopicSchema

FIELDS_SHOWN = 5
"""Fields that a message names."""
_TEXT_MAX = 120
"""Characters of a field's name or type in a message."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of a topic's schema from one recorded version to the next."""

    topic: str
    was: int
    now: int
    changes: tuple[Change, ...]

    @property
    def incompatible(self) -> tuple[Change, ...]:
        """The changes after which records or queries of before mean something else."""
        return tuple(one for one in self.changes if not one.compatible)

    @property
    def line(self) -> str:
        """For people, on one line: `schema 1 → 2, 3 incompatible: value.price (double → string, now in
        value.price_v2), …`.
        """
        wrong = self.incompatible
        versions = f"schema {self.was} → {self.now}"
        if not wrong:
            return f"{versions}, {counted(len(self.changes), 'change')}, compatible"
        return f"{versions}, {len(wrong)} incompatible: {_listed(wrong)}"

    def to_json(self) -> dict[str, Any]:
        """As the report of an archiving run has it."""
        fields = [
            f"{one.side}.{one.field}" if one.field else one.side for one in self.incompatible[:FIELDS_SHOWN]
        ]
        return {
            "from": self.was,
            "to": self.now,
            "changes": len(self.changes),
            "incompatible": len(self.incompatible),
            "incompatible_fields": fields,
        }


def change_of(topic: str, history: Sequence[TopicSchema], decision: Decision) -> SchemaChange | None:
    """The change that a decision would record; None for a first version and where nothing is new."""
    if not history or not decision.changes or decision.schema in history:
        return None
    return SchemaChange(topic, history[-1].version, decision.schema.version, decision.changes)


def check_allowed(settings: TopicSettings, change: SchemaChange | None) -> None:
    """Raise `TopicHalted` if the topic's `schema_change` does not allow the change."""
    policy = settings.schema_change
    if change is None or is_allowed(policy, change.changes):
        return
    named = change.line if change.incompatible else f"{change.line}: {_listed(change.changes)}"
    accept = "schema_change: evolve" if change.incompatible else "schema_change: compatible"
    raise TopicHalted(
        settings.name,
        f"its newest schema needs {named}; schema_change: {policy} does not allow this. Records stay "
        "in intake, and none is lost. "
        f"`archiver schema plan {settings.name}` shows the change. Accept it with {accept} and a "
        "reload, or restore the former schema",
    )


def _listed(changes: Sequence[Change]) -> str:
    rest = len(changes) - FIELDS_SHOWN
    return ", ".join(_named(one) for one in changes[:FIELDS_SHOWN]) + (
        f", and {rest} more" if rest > 0 else ""
    )


def _named(change: Change) -> str:
    name = _cut(f"{change.side}.{change.field}" if change.field else change.side)
    if change.what in ("added", "dropped", "restored"):
        return f"{name} ({change.what})"
    if change.what == "renamed":
        return f"{name} (renamed from {_cut(change.was)})"
    column = f", now in {_cut(change.column)}" if change.what == "new_column" else ""
    return f"{name} ({_cut(change.was) or 'none'} → {_cut(change.now) or 'none'}{column})"


def _cut(text: str) -> str:
    return excerpt(text, _TEXT_MAX)
