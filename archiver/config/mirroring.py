"""Whether topics and Kafka sources of one configuration fit together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archiver.config.kafka import KafkaSourceSettings
from archiver.config.topics import TopicSettings

Problems = list[tuple[tuple[str | int, ...], str]]


def mirror_problems(
    topics: Sequence[tuple[int, TopicSettings]],
    mirrors: Sequence[tuple[int, KafkaSourceSettings]],
    read_into: Mapping[str, int],
    mirrors_known: bool,
) -> Problems:
    """What does not fit; everything with its position in the file. `read_into`: the topics of file sources.
    Unless `mirrors_known`, there are further Kafka sources, and which topics they mirror cannot be read.
    """
    problems: Problems = []
    names: dict[str, int] = {}
    for position, mirror in mirrors:
        first = names.setdefault(mirror.name, position)
        if first != position and mirror.name is not None:
            problems.append(
                (
                    ("sources", position, "kafka", "name"),
                    f"{mirror.name} is the name of sources[{first}], too; give each its own",
                )
            )
    for position, topic in topics:
        here = ("topics", position)
        matching = [at for at, mirror in mirrors if mirror.matches(topic.name)]
        if matching and not topic.mirrored:
            problems.append(
                (
                    (*here, "partitions"),
                    (
                        f"sources[{matching[0]}] mirrors this topic, so it has as many as there: write "
                        "partitions: 0"
                    ),
                )
            )
        if topic.mirrored and not matching and mirrors_known:
            problems.append(
                (
                    (*here, "partitions"),
                    "is 0, which is for mirrored topics, and no Kafka source mirrors this one",
                )
            )
        if len(matching) > 1:
            problems.append(
                (
                    (*here, "name"),
                    (
                        f"is mirrored by sources[{matching[0]}] and sources[{matching[1]}]; make their "
                        "patterns exclude each other"
                    ),
                )
            )
        if topic.mirrored:
            problems += _problems_of(topic, here)
        if topic.mirrored and topic.name in read_into:
            problems.append(
                (
                    ("sources", read_into[topic.name], "files", "topic"),
                    f"{topic.name} is mirrored; read files into another one",
                )
            )
    mirrored = {topic.name for _, topic in topics if topic.mirrored}
    for position, topic in topics:
        for side, schema in (("key", topic.key), ("value", topic.value)):
            if schema is not None and schema.dlq in mirrored:
                problems.append(
                    (
                        ("topics", position, side, "dlq"),
                        f"{schema.dlq} is mirrored, so nothing else can be put into it",
                    )
                )
    return problems


def _problems_of(topic: TopicSettings, here: tuple[str | int, ...]) -> Problems:
    """A mirror takes every record as it is: what does not decode becomes an `__err__` row."""
    problems: Problems = []
    for side, schema in (("key", topic.key), ("value", topic.value)):
        if schema is not None and schema.validation != "none":
            problems.append(
                ((*here, side, "validate"), "must be none: a mirrored topic has every record of its upstream")
            )
        if schema is not None and schema.coerce:
            problems.append(
                (
                    (*here, side, "coerce"),
                    "must be false: a mirrored topic has every record of its upstream bit for bit",
                )
            )
    return problems
