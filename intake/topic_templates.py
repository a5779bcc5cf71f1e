"""Settings of topics without an entry in the configuration, from the first template that matches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from archiver.config.settings import Settings, TopicSettings
from intake.log.state import TopicState


@dataclass(frozen=True, slots=True)
class Composed:
    """The settings of all topics."""

    settings: Settings
    """The configured settings, with a topic for each one of the log that matches a template."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By topic: why it cannot have the settings of the template that matches it. It has none then."""


def compose(configured: Settings, topics: Iterable[TopicState]) -> Composed:
    """The settings for these topics of the log, in order of declaration.

    Where two topics would share a table, the configured one has it, else the one that was declared first. So
    all processes agree.
    """
    # Most deployments have no template, and keep their object.
    if not configured.templates:
        return Composed(configured)
    named = {topic.name for topic in configured.topics}
    owners = {table: topic.name for topic in configured.topics if (table := _table(topic)) is not None}
    found: list[TopicSettings] = []
    refused: dict[str, str] = {}
    for state in topics:
        template = next((one for one in configured.templates if one.matches(state.name)), None)
        if template is None or state.name in named:
            continue
        try:
            made = template.settings_of(state.name, 0 if state.mirrored else state.partitions)
        except ValueError as error:
            refused[state.name] = str(error)
            continue
        why = _changes_records(made) if state.mirrored else None
        table = _table(made)
        if why is None and table is not None and (owner := owners.setdefault(table, made.name)) != made.name:
            why = (
                f"the table {made.archive.table} in catalog {made.archive.catalog} belongs to topic {owner}; "
                "choose another name, or give one of the two topics an entry with another table"
            )
        if why is None:
            found.append(made)
        else:
            refused[state.name] = f"the template {template.pattern} does not fit: {why}"
    return Composed(configured.model_copy(update={"topics": (*configured.topics, *found)}), refused)


def _table(topic: TopicSettings) -> tuple[str, str] | None:
    """The table's place, as catalogs without case distinguish it."""
    if topic.archive.catalog is None or topic.archive.table is None:
        return None
    return topic.archive.catalog, topic.archive.table.casefold()


def _changes_records(topic: TopicSettings) -> str | None:
    """Why the schemas are not for a mirrored topic, which keeps every record of its upstream; None if they
    are.
    """
    for side, schema in (("key", topic.key), ("value", topic.value)):
        if schema is not None and (schema.validation != "none" or schema.coerce):
            return f"its {side} has validate or coerce, and a mirrored topic keeps every record unchanged"
    return None
