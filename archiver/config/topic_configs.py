"""Topic configs: settings of one topic that clients may change, by the names that Kafka tools use. Pure.

A config has an effect, or describes how Kafka's brokers store a log, which has no counterpart here. Configs
of the second kind are accepted within Kafka's bounds and change nothing. A value that promises what this
program does not do is refused. `cleanup.policy` is the one exception, because Kafka Streams and Kafka Connect
need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from archiver.config.settings import Settings
from archiver.config.topics import TRIGGERS, TopicArchiveSettings, TopicSettings, TopicTemplateSettings
from archiver.config.types import RETENTION_MIN_S, Group, format_duration, format_size

Kind = Literal["boolean", "string", "int", "long", "double", "list"]
Source = Literal["topic", "file", "default"]
"""Where a value is from: a client set it, the configuration file states it, or neither."""

MESSAGE_BYTES_MAX = 1_048_588
"""Kafka's default of `max.message.bytes`: the largest record batch, as sent."""
_CHARS_MAX = 255
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One config."""

    name: str
    kind: Kind
    doc: str
    check: Callable[[str], str]
    """The value in its stored form; raises `ValueError` with the reason."""
    default: str = ""
    setting: tuple[str, ...] = ()
    """Path of the key in a topic's entry in the configuration file that has the same meaning."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config of one topic."""

    config: TopicConfig
    value: str
    source: Source
    read_only: bool
    """The configuration file states it, so no client can change it."""


# --- checks of values


def _number(low: int, high: int, only: str = "") -> Callable[[str], str]:
    def check(value: str) -> str:
        # Bounded before it is parsed. ASCII only: `int` would also accept other digits and underscores.
        digits = value.removeprefix("-")
        if not 1 <= len(digits) <= 19 or not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{value[:40]!r} is not a whole number")
        if not low <= int(value) <= high:
            raise ValueError(f"{value} is not between {low} and {high}{only}")
        return str(int(value))

    return check


def _one_of(*values: str, why: str = "") -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"{value[:40]!r} is not {' or '.join(values)}{why}")
        return value

    return check


def _ratio(value: str) -> str:
    try:
        number = float(value) if len(value) <= 20 else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError(f"{value[:40]!r} is not a number between 0 and 1")
    return value


def _policy(value: str) -> str:
    policies = [one.strip() for one in value.split(",")]
    if len(set(policies)) != len(policies) or not set(policies) <= {"delete", "compact"}:
        raise ValueError(f"{value[:40]!r} is not delete, compact or compact,delete")
    return ",".join(policies)


def _retention(value: str) -> str:
    written = _number(-1, _LONG_MAX)(value)
    if written != "-1" and int(written) < RETENTION_MIN_S * 1000:
        raise ValueError(
            f"{written} is less than an hour; records are deleted permanently, so set at least "
            f"{RETENTION_MIN_S * 1000:.0f}, or -1 for ever"
        )
    return written


def _trigger(name: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if len(value) > 40:
            raise ValueError(f"{value[:40]!r} is too long")
        try:
            TopicArchiveSettings.model_validate({name: _plain(value)})
        except ValueError as error:
            raise ValueError(_reason(value, error)) from None
        return value

    return check


def _plain(value: str) -> str | int:
    """A whole number as one, because a size or a duration without a unit is a number in the file."""
    return int(value) if value.removeprefix("-").isdigit() and value.isascii() else value


def _reason(value: str, error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = errors(include_url=False)[0]
    # The parsers of durations and sizes name the value in their own words.
    if found["type"] == "value_error":
        return str(found["ctx"]["error"])
    return f"{value!r} does not fit: {str(found['msg']).replace('Input should be', 'it must be', 1)}"


# --- the configs

_STORAGE = (
    "It describes the log segments of Kafka's brokers. Accepted without effect: records are in Parquet."
)
_FLUSH = "Accepted without effect: a record is acknowledged when it is in the object store."
_COMPACTION = "Accepted without effect, because nothing is compacted."
_MS = _number(0, _LONG_MAX)

CONFIGS: Mapping[str, TopicConfig] = {
    config.name: config
    for config in (
        TopicConfig(
            "retention.ms",
            "long",
            "How long archived records are kept, at least an hour; -1 for ever. Records that are not "
            "archived stay.",
            _retention,
            "-1",
            ("retention",),
        ),
        *(
            TopicConfig(
                f"archive.{name}",
                "string",
                f"The key `archive.{name}` of the topic, as in the configuration file.",
                _trigger(name),
                setting=("archive", name),
            )
            for name in TRIGGERS
        ),
        TopicConfig(
            "cleanup.policy",
            "list",
            "delete, compact or both. With compact every record is kept as well: a reader gets all values of "
            "a key, the newest last.",
            _policy,
            "delete",
        ),
        TopicConfig(
            "compression.type",
            "string",
            "Always producer: batches are stored as columns and compressed with Zstandard.",
            _one_of("producer", why="; records are stored as columns, so it cannot be chosen"),
            "producer",
        ),
        TopicConfig(
            "message.timestamp.type",
            "string",
            "CreateTime: records keep the times of their producers. LogAppendTime: the accept time replaces "
            "the event time of new records.",
            _one_of("CreateTime", "LogAppendTime"),
            "CreateTime",
        ),
        TopicConfig(
            "max.message.bytes",
            "int",
            "Largest record batch, in bytes, as it is sent. `kafka.request_bytes_max` limits it as well.",
            _number(0, _INT_MAX),
            str(MESSAGE_BYTES_MAX),
        ),
        TopicConfig("min.insync.replicas", "int", _FLUSH, _number(1, _INT_MAX), "1"),
        TopicConfig("unclean.leader.election.enable", "boolean", _FLUSH, _one_of("false", "true"), "false"),
        TopicConfig("flush.messages", "long", _FLUSH, _number(1, _LONG_MAX), str(_LONG_MAX)),
        TopicConfig("flush.ms", "long", _FLUSH, _MS, str(_LONG_MAX)),
        TopicConfig("segment.bytes", "int", _STORAGE, _number(14, _INT_MAX), str(2**30)),
        TopicConfig("segment.ms", "long", _STORAGE, _number(1, _LONG_MAX), str(7 * 86_400_000)),
        TopicConfig("segment.jitter.ms", "long", _STORAGE, _MS, "0"),
        TopicConfig("segment.index.bytes", "int", _STORAGE, _number(4, _INT_MAX), str(10 * 2**20)),
        TopicConfig("index.interval.bytes", "int", _STORAGE, _number(0, _INT_MAX), "4096"),
        TopicConfig("preallocate", "boolean", _STORAGE, _one_of("false", "true"), "false"),
        TopicConfig("file.delete.delay.ms", "long", _STORAGE, _MS, "60000"),
        TopicConfig(
            "retention.bytes",
            "long",
            "Always -1: records are kept by time, not by size.",
            _number(-1, -1, "; records are kept by time, so set retention.ms"),
            "-1",
        ),
        TopicConfig("delete.retention.ms", "long", _COMPACTION, _MS, "86400000"),
        TopicConfig("min.compaction.lag.ms", "long", _COMPACTION, _MS, "0"),
        TopicConfig("max.compaction.lag.ms", "long", _COMPACTION, _number(1, _LONG_MAX), str(_LONG_MAX)),
        TopicConfig("min.cleanable.dirty.ratio", "double", _COMPACTION, _ratio, "0.5"),
    )
}
"""By name."""
_FIXED = ("archive.kind", "archive.catalog", "archive.table")
"""What only the configuration file decides."""


def checked(name: str, value: str | None) -> str:
    """The value in its stored form. Raises `ValueError` with the reason, for an unknown name as well."""
    if name in _FIXED:
        raise ValueError(f"only the configuration file can set {name}, in an entry or a template of topics")
    config = CONFIGS.get(name)
    if config is None:
        raise ValueError(f"there is no topic config {name[:_CHARS_MAX]!r}")
    if value is None or len(value) > _CHARS_MAX:
        raise ValueError(f"{name} needs a value of at most {_CHARS_MAX} characters")
    return config.check(value)


def fixed_by(settings: Settings, topic: str, name: str) -> str | None:
    """The key of the configuration file that states this config of the topic, so that no client can change
    it; None if clients may. `settings` are the configured ones.
    """
    config, entry = CONFIGS.get(name), settings.topic(topic)
    if config is None or entry is None or not _states(entry, config):
        return None
    return f"topics.{topic}.{'.'.join(config.setting)}"


def _states(entry: TopicSettings | TopicTemplateSettings, config: TopicConfig) -> bool:
    """Whether an entry of the file has the key of a config."""
    group: Group = entry
    for key in config.setting:
        if key not in group.model_fields_set:
            return False
        group = getattr(group, key)
    return bool(config.setting)


def with_configs(
    topic: TopicSettings, configs: Mapping[str, str], file: TopicSettings | None
) -> TopicSettings:
    """The topic's settings, with the configs that clients set and its entry in the file does not state.

    Raises `ValueError` for a value that this version does not accept.
    """
    archive: dict[str, object] = {}
    update: dict[str, object] = {}
    for name, value in configs.items():
        config = CONFIGS.get(name)
        # A config without a key has no effect on archiving. An unknown one is of a newer version.
        if config is None or not config.setting or (file is not None and _states(file, config)):
            continue
        config.check(value)
        if name == "retention.ms":
            update["retention"] = None if value == "-1" else int(value) / 1000
        else:
            archive[config.setting[-1]] = _plain(value)
    if archive:
        # Validated, so that durations and sizes become numbers.
        made = TopicArchiveSettings.model_validate(archive)
        update["archive"] = topic.archive.model_copy(update={name: getattr(made, name) for name in archive})
    return topic.model_copy(update=update) if update else topic


def values_of(
    configured: Settings, topic: str, effective: TopicSettings | None, configs: Mapping[str, str]
) -> dict[str, ConfigValue]:
    """Every config of a topic, by name. `configured` are the settings of the file, `effective` those in
    force, `configs` what clients set.
    """
    entry = configured.topic(topic)
    file = entry or configured.template(topic)
    found: dict[str, ConfigValue] = {}
    for name, config in CONFIGS.items():
        fixed = entry is not None and _states(entry, config)
        if name in configs and not fixed:
            found[name] = ConfigValue(config, configs[name], "topic", read_only=False)
            continue
        stated = file is not None and _states(file, config)
        value = _shown(configured, effective, config)
        found[name] = ConfigValue(config, value, "file" if stated else "default", read_only=fixed)
    return found


def _shown(configured: Settings, effective: TopicSettings | None, config: TopicConfig) -> str:
    """The value that no client set."""
    if not config.setting:
        return config.default
    if config.name == "retention.ms":
        retention = None if effective is None else effective.retention
        return "-1" if retention is None else str(round(retention * 1000))
    key = config.setting[-1]
    archive = configured.archive if effective is None else configured.archive_for(effective)
    value = getattr(archive, key)
    if not key.endswith("_bytes"):
        return format_duration(value)
    # -1 stands for "never", and has no unit.
    return str(value) if value < 0 else format_size(value)


__all__ = [
    "CONFIGS",
    "MESSAGE_BYTES_MAX",
    "ConfigValue",
    "TopicConfig",
    "checked",
    "fixed_by",
    "values_of",
    "with_configs",
]
