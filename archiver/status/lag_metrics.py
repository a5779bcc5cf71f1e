"""From where everything stands to samples with a bounded number of series.

Pure. Owns the folding: which topics and partitions have series of their own, and what is summed under
`_other`. Promises that what cannot be told is absent: a sum of which one part is unknown is unknown, and so
is the greatest of such numbers. Must never make a label of anything but names of topics, partitions, stages
and kinds of reasons.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from archiver.runtime.metric_names import HELD_CAUSES, METRICS, OTHER, STAGES
from archiver.status.lag import LagReport, PartitionLag, StageLag, TopicLag

Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of the table."""


class SeriesLimits(Protocol):
    """What folding needs of the `metrics` settings."""

    @property
    def partitions_max(self) -> int:
        """Topic partitions that have series of their own."""

    @property
    def topics_max(self) -> int:
        """Topics that have series of their own."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How many values there were up to each bound, for a histogram."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Per bound, not added up; one more than bounds: the last are above all."""
    total: float
    """The sum of the values."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series."""

    name: str
    """As in `archiver.runtime.metric_names.METRICS`."""
    samples: Mapping[Labels, float] = field(default_factory=dict)
    spread: Spread | None = None
    """Of a histogram, which has no samples besides."""

    def __post_init__(self) -> None:
        metric = METRICS[self.name]
        assert (metric.kind == "histogram") == (self.spread is not None), self.name
        assert all(len(labels) == len(metric.labels) for labels in self.samples), self.name


def gauge(name: str, value: float | None) -> list[Family]:
    """A metric without labels; nothing if its value cannot be told."""
    return [] if value is None else [Family(name, {(): float(value)})]


class Folding:
    """Which topics and partitions have series of their own: the first ones, in the order of their names."""

    def __init__(self, standing: LagReport, limits: SeriesLimits) -> None:
        topics = sorted(
            (topic for topic in standing.topics if topic.topic != OTHER), key=lambda topic: topic.topic
        )
        self._own = {topic.topic for topic in topics[: limits.topics_max]}
        places = (
            (topic.topic, item.partition)
            for topic in topics[: limits.topics_max]
            for item in topic.partitions
        )
        self._places = {place for _, place in zip(range(limits.partitions_max), places, strict=False)}
        self.topics = len(standing.topics) - len(self._own)
        """Topics that are folded."""
        self.partitions = sum(len(topic.partitions) for topic in standing.topics) - len(self._places)
        """Partitions that are folded."""

    def topic(self, name: str) -> str:
        """Under which topic it is shown. One that is called `_other` is always among the others."""
        return name if name in self._own else OTHER

    def place(self, topic: str, partition: int) -> tuple[str, str]:
        """Under which topic and partition it is shown."""
        return (topic, str(partition)) if (topic, partition) in self._places else (self.topic(topic), OTHER)


def standing_families(standing: LagReport, limits: SeriesLimits, now_us: int) -> list[Family]:
    """Lag, freshness and what holds topics back; ages of times are as of `now_us`, lags as of the
    standing.
    """
    folding = Folding(standing, limits)

    def age(since_us: int | None) -> float | None:
        return None if since_us is None else max(0, now_us - since_us) / 1e6

    per_topic: dict[str, tuple[Callable[[TopicLag], float | None], Callable[[Iterable[float]], float]]] = {
        "archiver_freshness_seconds": (lambda topic: age(topic.valid_through_us), max),
        "archiver_commit_age_seconds": (lambda topic: age(topic.last_commit_us), max),
        "archiver_topic_stuck": (lambda topic: float(topic.stuck is not None), max),
        "archiver_pending_archives": (lambda topic: topic.pending, sum),
        "archiver_pending_archive_bytes": (lambda topic: topic.pending_bytes, sum),
        "archiver_lag_unknown_partitions": (lambda topic: sum(map(_untold, topic.partitions)), sum),
    }
    families = _lags(standing, folding)
    for name, (value, join) in per_topic.items():
        found: defaultdict[str, list[float | None]] = defaultdict(list)
        for topic in standing.topics:
            found[folding.topic(topic.topic)].append(value(topic))
        joined: dict[Labels, float | None] = {
            (topic,): _joined(values, join) for topic, values in found.items()
        }
        families.append(Family(name, _known(joined)))
    held = Counter(
        item.cause for topic in standing.topics for item in topic.partitions if item.cause is not None
    )
    families.append(
        Family("archiver_held_partitions", {(cause,): float(held[cause]) for cause in HELD_CAUSES})
    )
    return [
        *families,
        Family("archiver_aggregated_partitions", {(): float(folding.partitions)}),
        Family("archiver_aggregated_topics", {(): float(folding.topics)}),
    ]


def _lags(standing: LagReport, folding: Folding) -> list[Family]:
    found: defaultdict[Labels, list[StageLag]] = defaultdict(list)
    for topic in standing.topics:
        for item in topic.partitions:
            place = folding.place(topic.topic, item.partition)
            for stage in STAGES:
                if stage in item.stages:
                    found[*place, stage].append(item.stages[stage])
    records = {labels: _joined([lag.records for lag in lags], sum) for labels, lags in found.items()}
    seconds = {labels: _joined([lag.seconds for lag in lags], max) for labels, lags in found.items()}
    return [Family("archiver_lag_records", _known(records)), Family("archiver_lag_seconds", _known(seconds))]


def _known(values: Mapping[Labels, float | None]) -> dict[Labels, float]:
    return {labels: value for labels, value in values.items() if value is not None}


def _untold(partition: PartitionLag) -> bool:
    return any(lag.records is None or lag.seconds is None for lag in partition.stages.values())


def _joined(values: Iterable[float | None], join: Callable[[Iterable[float]], float]) -> float | None:
    """All of them as one number; None if one of them is not known."""
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return float(join(known))
