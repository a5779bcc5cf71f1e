"""Plan of a configuration reload: which keys apply at once and which need a restart. Pure.

The planned settings are as consistent as settings from one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr

from archiver.config.settings import Settings, TopicSettings, TopicTemplateSettings
from archiver.config.types import format_duration
from archiver.runtime.errors import ConfigInvalid

APPLIED = (
    "archive",
    "cleanup",
    "topics",
    "daemon.watch_interval",
    "daemon.audit_interval",
    "daemon.shutdown_grace",
    "daemon.retry_max",
)
"""Groups and keys that apply at once; all others need a restart."""

ABSENT = "(absent)"
RESTART = "it needs a restart"


@dataclass(frozen=True, slots=True)
class Change:
    """One key with its old and new value."""

    key: str
    """For example `archive.tick` or `topics.orders.archive.idle_max`."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class Refused:
    """One key that keeps its old value."""

    key: str
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"


@dataclass(frozen=True, slots=True)
class Reload:
    """Plan for a changed file."""

    settings: Settings
    """Settings to use from now on."""
    applied: tuple[Change, ...]
    refused: tuple[Refused, ...]

    def to_json(self) -> dict[str, object]:
        """The document of a reload."""
        return {
            "applied": [{"key": item.key, "old": item.old, "new": item.new} for item in self.applied],
            "refused": [{"key": item.key, "why": item.why} for item in self.refused],
        }


def intervals(settings: Settings) -> dict[str, float]:
    """Seconds between two runs of each job, for all roles."""
    daemon = settings.daemon
    return {
        "tick": settings.archive.tick,
        "cleanup": settings.cleanup.interval,
        "audit": daemon.audit_interval,
        "watch": daemon.watch_interval,
        "checkpoint": daemon.watch_interval,
        "local_state": daemon.watch_interval,
    }


def plan_reload(old: Settings, new: Settings, existing: Mapping[str, int] | None = None) -> Reload:
    """Which parts of `new` replace those of `old`.

    `existing` is the number of partitions in the intake log, by topic; 0 for a mirrored one. A file that
    agrees with the log is accepted even if the settings in force do not agree, and so is a larger number. Of
    a topic that is not there, the settings in force count.

    Raises `ConfigInvalid` if the mix of new values and refused keys' old values is inconsistent; then nothing
    changes.
    """
    topics, refused_topics = _topics(old, new, existing or {})
    templates, refused_templates = _templates(old, new)
    own = {
        key.removeprefix("daemon."): getattr(new.daemon, key.removeprefix("daemon."))
        for key in APPLIED
        if key.startswith("daemon.")
    }
    # `model_copy` does not validate, so `_check` repeats the rules that span several groups.
    settings = old.model_copy(
        update={
            "archive": new.archive,
            "cleanup": new.cleanup,
            "daemon": old.daemon.model_copy(update=own),
            "topics": topics,
            "templates": templates,
        }
    )
    _check(settings)
    changes = _changes(old, new)
    # Without its value, which may be a secret.
    refused = [Refused(change.key, RESTART) for change in changes if not _is_applied(change.key)]
    # The changes against the planned settings, so refused keys do not appear as applied.
    refused += refused_topics + refused_templates
    return Reload(settings, tuple(_changes(old, settings)), tuple(refused))


def _is_applied(key: str) -> bool:
    # With the separator: `daemon.retry_max` must not match `daemon.retry_max_other`.
    return any(key == name or key.startswith((name + ".", name + "[")) for name in APPLIED)


def _topics(
    old: Settings, new: Settings, existing: Mapping[str, int]
) -> tuple[tuple[TopicSettings, ...], list[Refused]]:
    """Topics to use from now on, and their refused changes."""
    topics: list[TopicSettings] = []
    refused: list[Refused] = []
    for topic in new.topics:
        before, accepted, here = old.topic(topic.name), topic, f"topics.{topic.name}"
        # The log decides. The settings in force may say less, because the topic can grow without them.
        known = existing.get(topic.name, topic.partitions if before is None else before.partitions)
        # A key that did not change is not refused; `status` says that it is behind the log.
        changed = before is None or topic.partitions != before.partitions
        why = _partitions_refused(known, topic.partitions) if changed else None
        if why is not None:
            refused.append(Refused(f"{here}.partitions", why))
            kept = known if before is None else before.partitions
            accepted = accepted.model_copy(update={"partitions": kept})
        catalog = topic.archive.catalog
        # Catalogs are not reloaded, so this process has no adapter for a new one.
        if catalog is not None and old.catalog(catalog) is None:
            if before is None:
                refused.append(Refused(here, f"its catalog {catalog} is new: {RESTART}"))
                continue
            refused.append(Refused(f"{here}.archive", f"the catalog {catalog} is new: {RESTART}"))
            accepted = accepted.model_copy(update={"archive": before.archive})
        topics.append(accepted)
    # Sources are not reloaded and would continue to append to the removed topic.
    read_into = {source.files.topic for source in old.sources if source.files is not None}
    for topic in old.topics:
        if topic.name in read_into and new.topic(topic.name) is None:
            refused.append(Refused(f"topics.{topic.name}", f"a source reads into it: {RESTART}"))
            topics.append(topic)
    return tuple(topics), refused


def _templates(old: Settings, new: Settings) -> tuple[tuple[TopicTemplateSettings, ...], list[Refused]]:
    """Templates to use from now on, and their refused changes."""
    before = {one.pattern: one for one in old.templates}
    templates: list[TopicTemplateSettings] = []
    refused: list[Refused] = []
    for template in new.templates:
        catalog, here = template.archive.catalog, f"topics.{template.pattern}"
        if catalog is None or old.catalog(catalog) is not None:
            templates.append(template)
            continue
        # As for topics: this process has no adapter for a new catalog.
        refused.append(Refused(here, f"the catalog {catalog} is new: {RESTART}"))
        if template.pattern in before:
            templates.append(before[template.pattern])
    return tuple(templates), refused


def _partitions_refused(known: int, requested: int) -> str | None:
    """Why a topic keeps its partitions, and what to do; None if it gets the requested number."""
    # 0 stands for a mirrored topic.
    if known == 0 and requested > 0:
        return "the topic is mirrored, which cannot change; set `partitions: 0`"
    if requested < known:
        return f"the topic has {known}, and their number is never lowered; set `partitions: {known}`"
    return None


def _check(settings: Settings) -> None:
    # Each file was valid alone. The mix may give one table to a new topic and to an old one.
    tables: dict[tuple[str, str], str] = {}
    for topic in settings.topics:
        if topic.archive.catalog is not None and topic.archive.table is not None:
            # Some catalogs ignore case in names, so names that differ only in case count as one table.
            owner = tables.setdefault((topic.archive.catalog, topic.archive.table.casefold()), topic.name)
            if owner != topic.name:
                raise ConfigInvalid(
                    f"the table {topic.archive.table} in catalog {topic.archive.catalog} would belong "
                    f"to the topics {owner} and "
                    f"{topic.name}, because a part of the changes needs a restart; restart instead of "
                    "reloading"
                )


def _changes(old: Settings, new: Settings) -> list[Change]:
    """Every changed key, in the order of the groups in the file."""
    found: list[Change] = []
    for group in Settings.model_fields:
        if group not in ("topics", "templates"):
            found += _differences(getattr(old, group), getattr(new, group), group)
    before, after = (_entries(settings) for settings in (old, new))
    # Removed topics come last; the others keep the order of the file.
    for name in [*after, *(name for name in before if name not in after)]:
        here = f"topics.{name}"
        if name in before and name in after:
            found += _differences(before[name], after[name], here)
        else:
            what = "topic" if isinstance(before.get(name, after.get(name)), TopicSettings) else "template"
            found.append(
                Change(here, ABSENT, f"a new {what}") if name in after else Change(here, f"a {what}", ABSENT)
            )
    # The first template that matches is used, so their order is a setting too.
    orders = [", ".join(one.pattern for one in settings.templates) for settings in (old, new)]
    if orders[0] != orders[1] and before.keys() == after.keys():
        found.append(Change("topics", *orders))
    return found


def _entries(settings: Settings) -> dict[str, TopicSettings | TopicTemplateSettings]:
    """The entries of `topics` by name or pattern."""
    return {topic.name: topic for topic in settings.topics} | {
        # A pattern may equal a topic's name, and has a key of its own then.
        f"{one.pattern} (pattern)": one
        for one in settings.templates
    }


def _differences(old: object, new: object, key: str) -> list[Change]:
    before, after = dict(_leaves(old, key)), dict(_leaves(new, key))
    keys = [*after, *(name for name in before if name not in after)]
    return [
        Change(name, _shown(before, name), _shown(after, name))
        for name in keys
        # Secrets are compared by value, but shown as `(secret)`.
        if _plain(before.get(name)) != _plain(after.get(name))
    ]


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    """Every leaf below `value`, with its key."""
    if isinstance(value, BaseModel):
        # Extra keys of a model are settings too: a catalog passes them to its library.
        for name in [*type(value).model_fields, *(value.__pydantic_extra__ or {})]:
            yield from _leaves(getattr(value, name), f"{key}.{name}")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}")
    elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        for position, item in enumerate(value):
            # By name where there is one: an inserted item would otherwise change the keys of all later ones.
            own = getattr(item, "name", None)
            yield from _leaves(item, f"{key}[{position}]" if own is None else f"{key}.{own}")
    else:
        yield key, value


def _plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _shown(values: dict[str, Any], key: str) -> str:
    """Text of a value; never a secret."""
    if key not in values:
        return ABSENT
    value = values[key]
    if isinstance(value, SecretStr):
        return "(secret)"
    if value is None:
        return "(not set)"
    if isinstance(value, float):
        return format_duration(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
