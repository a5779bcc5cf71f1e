"""The settings in force of each topic: its entry or the first template that matches, and its configs.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from archiver.config.settings import Settings, TopicSettings
from archiver.config.topic_configs import with_configs
from intake.log.state import TopicState

Templated = Mapping[tuple[str, int], TopicSettings]
"""Settings from templates, by the topic's name and number of partitions (0: mirrored)."""


@dataclass(frozen=True, slots=True)
class Composed:
    """The settings of all topics."""

    settings: Settings
    """The configured settings, with a topic for each one of the log that matches a template. The configs of a
    topic are applied."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By topic: why it cannot have the settings of the template that matches it. It has none then."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """By topic: why its configs are not applied."""
    templated: Templated = field(default_factory=dict)
    """What the templates gave, without configs; for the next call with the same configuration."""


def compose(
    configured: Settings, topics: Iterable[TopicState], known: Templated = MappingProxyType({})
) -> Composed:
    """The settings for these topics of the log, in order of declaration. `known` is `templated` of an earlier
    call with the same configuration, which saves most of the time with thousands of topics.

    Where two topics would share a table, the configured one has it, else the one that was declared first. So
    all processes agree.
    """
    topics = list(topics)
    # Most deployments need neither, and keep their object.
    if not configured.templates and not any(state.configs for state in topics):
        return Composed(configured)
    made = _templated(configured, topics, known)
    ignored: dict[str, str] = {}
    found: list[TopicSettings] = []
    configs = {state.name: dict(state.configs) for state in topics if state.configs}
    for topic in made.settings.topics:
        if topic.name not in configs:
            found.append(topic)
            continue
        try:
            # Only an entry of the file protects its keys; a template states defaults.
            file = topic if topic.template is None else None
            found.append(with_configs(topic, configs[topic.name], file))
        except ValueError as error:
            ignored[topic.name] = str(error)
            found.append(topic)
    settings = configured.model_copy(update={"topics": tuple(found)})
    return Composed(settings, made.refused, ignored, made.templated)


def _templated(configured: Settings, topics: Sequence[TopicState], known: Templated) -> Composed:
    """With the topics that match a template, without configs."""
    named = {topic.name for topic in configured.topics}
    owners = {table: topic.name for topic in configured.topics if (table := _table(topic)) is not None}
    found: list[TopicSettings] = []
    refused: dict[str, str] = {}
    templated: dict[tuple[str, int], TopicSettings] = {}
    for state in topics:
        template = next((one for one in configured.templates if one.matches(state.name)), None)
        if template is None or state.name in named:
            continue
        key = (state.name, 0 if state.mirrored else state.partitions)
        try:
            made = known.get(key) or template.settings_of(*key)
        except ValueError as error:
            refused[state.name] = str(error)
            continue
        templated[key] = made
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
    settings = configured.model_copy(update={"topics": (*configured.topics, *found)})
    return Composed(settings, refused, templated=templated)


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
