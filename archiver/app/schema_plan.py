"""What a newer schema would do to a topic's table, before any record uses it.

`archiver schema plan` and `check` print it, and the page of a topic's schema shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archiver.runtime.errors import no_topic
from archiver.schema.evolution.recorded import TopicSchema
from archiver.status.mapping import SchemaPlan, plan_of

if TYPE_CHECKING:
    from archiver.app.deployment import Deployment
    from archiver.config.settings import SchemaSettings
    from archiver.schema.evolution.evolve import SideName
    from archiver.schema.evolution.recorded import SourceSchema
    from archiver.schema.protobuf.descriptors import Source

SIDES: tuple[SideName, SideName] = ("key", "value")


@dataclass(frozen=True, slots=True)
class Given:
    """A newer schema of one side in place of the configured one."""

    side: SideName
    load: Callable[[SchemaSettings | None, SourceSchema | None], Source]
    """From the side's settings and its newest recorded schema."""


def schema_history(app: Deployment, topic: str) -> list[TopicSchema]:
    """Every recorded schema of a topic, the oldest first.

    Raises `NotFound` for a topic that neither exists nor is configured.
    """
    topics = app.backlog().topics_by_name
    if topic not in topics:
        # A configured topic may not exist yet; then nothing is recorded.
        if app.settings.topic(topic) is None:
            raise no_topic(topic, {*topics, *(one.name for one in app.settings.topics)})
        return []
    entries = app.ledger().topic(topics[topic].topic_id).schemas
    return [TopicSchema.from_entry(entries[version]) for version in sorted(entries)]


def planned(
    app: Deployment, topic: str, history: list[TopicSchema], given: Given | None = None
) -> tuple[SchemaPlan, list[str]]:
    """The plan of a newer schema, and notes about its source, for example that the registry is down.

    Without `given`, the schemas come from the source that the configuration names. Raises what fetching or
    loading a schema raises, and `ConfigInvalid` for a message that cannot be mapped.
    """
    settings = app.settings.topic(topic)
    sources: dict[SideName, Source | None] = {}
    notes: list[str] = []
    for side in SIDES:
        # A topic that was removed from the configuration has a history but no settings.
        group: SchemaSettings | None = None if settings is None else getattr(settings, side)
        known: SourceSchema | None = getattr(history[-1], side) if history else None
        if given is not None and given.side == side:
            sources[side] = given.load(group, known)
        # The other side stays as recorded, so the plan shows only the change in question.
        elif given is not None and known is not None:
            sources[side] = known.source()
        elif group is None:
            sources[side] = None
        else:
            fetched = app.fetch_schema(group, known)
            sources[side] = fetched.source
            notes += [] if fetched.note is None else [fetched.note]
    policy = "evolve" if settings is None else settings.schema_change
    return plan_of(topic, history, sources["key"], sources["value"], policy), notes
