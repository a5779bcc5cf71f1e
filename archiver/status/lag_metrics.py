"""Converts a lag report to metric samples with a bounded number of series.

The first topics and partitions by name have their own series; the others are summed under `_other`. Labels
have only names of topics, partitions, consumer groups, stages and causes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archiver.runtime.metric_names import HELD_CAUSES, METRICS, OTHER, STAGES
from archiver.status.group_lag import GroupReport
from archiver.status.lag import LagReport, PartitionLag, StageLag, TopicLag

if TYPE_CHECKING:
    from archiver.config.daemon import MetricsSettings

Labels = tuple[str, ...]
"""Label values of a metric, in the order of `METRICS`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Number of values up to each bound, for a histogram."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Per bound, not cumulative; the additional last count is for values above all bounds."""
    total: float
    """The sum of the values."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series."""

    name: str
    """As in `archiver.runtime.metric_names.METRICS`."""
    samples: Mapping[Labels, float] = field(default_factory=dict)
    spread: Spread | None = None
    """Only for a histogram, which has no `samples`."""

    def __post_init__(self) -> None:
        metric = METRICS[self.name]
        assert (metric.kind == "histogram") == (self.spread is not None), self.name
        # A sample with a missing label would merge with others at the collector.
        assert all(len(labels) == len(metric.labels) for labels in self.samples), self.name


def gauge(name: str, value: float | None) -> list[Family]:
    """A metric without labels; nothing if its value is unknown."""
    return [] if value is None else [Family(name, {(): float(value)})]


class Folding:
    """Decides which topics and partitions have their own series: the first ones by name."""

    def __init__(self, standing: LagReport, limits: MetricsSettings) -> None:
        # A topic may have the name of the sum; it then counts as one of the others.
        topics = sorted(
            (topic for topic in standing.topics if topic.topic != OTHER), key=lambda topic: topic.topic
        )
        # By name and not by lag: a series must not change between its own and the sum.
        self._own = {topic.topic for topic in topics[: limits.topics_max]}
        places = (
            (topic.topic, item.partition)
            for topic in topics[: limits.topics_max]
            for item in topic.partitions
        )
        # At most so many in total: one topic can have thousands of partitions.
        self._places = {place for _, place in zip(range(limits.partitions_max), places, strict=False)}
        self.topics = len(standing.topics) - len(self._own)
        """Topics that are folded."""
        self.partitions = sum(len(topic.partitions) for topic in standing.topics) - len(self._places)
        """Partitions that are folded."""

    def topic(self, name: str) -> str:
        """Label of a topic. A topic with the name `_other` is always folded."""
        return name if name in self._own else OTHER

    def place(self, topic: str, partition: int) -> tuple[str, str]:
        """Labels of a topic partition."""
        return (topic, str(partition)) if (topic, partition) in self._places else (self.topic(topic), OTHER)


def standing_families(standing: LagReport, limits: MetricsSettings, now_us: int) -> list[Family]:
    """Lag, freshness and causes of delays. Ages are as of `now_us`, lags as of the report."""
    folding = Folding(standing, limits)

    def age(since_us: int | None) -> float | None:
        return None if since_us is None else max(0, now_us - since_us) / 1e6

    per_topic: dict[str, tuple[Callable[[TopicLag], float | None], Callable[[Iterable[float]], float]]] = {
        # Of folded topics the worst counts; sizes are added up.
        "archiver_freshness_seconds": (lambda topic: age(topic.valid_through_us), max),
        "archiver_commit_age_seconds": (lambda topic: age(topic.last_commit_us), max),
        "archiver_topic_stuck": (lambda topic: float(topic.stuck is not None), max),
        "archiver_pending_archives": (lambda topic: topic.pending, sum),
        "archiver_pending_archive_bytes": (lambda topic: topic.pending_bytes, sum),
        "archiver_lag_unknown_partitions": (lambda topic: sum(map(_has_unknown_lag, topic.partitions)), sum),
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
        # Every cause has a sample, also 0, so that an alert can see it rise.
        Family("archiver_held_partitions", {(cause,): float(held[cause]) for cause in HELD_CAUSES})
    )
    return [
        *families,
        Family("archiver_aggregated_partitions", {(): float(folding.partitions)}),
        Family("archiver_aggregated_topics", {(): float(folding.topics)}),
    ]


def group_families(report: GroupReport) -> list[Family]:
    """Lag of consumer groups, as of the report."""
    rows = {
        (lag.group, one.topic, str(one.partition)): one for lag in report.groups for one in lag.partitions
    }
    return [
        Family(
            "archiver_group_lag_records",
            _known({labels: one.lag_records for labels, one in rows.items()}),
        ),
        Family("archiver_group_lag_seconds", _known({labels: one.lag_s for labels, one in rows.items()})),
        Family("archiver_group_partitions_left", {(): float(report.partitions_left)}),
    ]


def _lags(standing: LagReport, folding: Folding) -> list[Family]:
    found: defaultdict[Labels, list[StageLag]] = defaultdict(list)
    for topic in standing.topics:
        for item in topic.partitions:
            place = folding.place(topic.topic, item.partition)
            for stage in STAGES:
                # Topics without archiving have only the first stage.
                if stage in item.stages:
                    found[*place, stage].append(item.stages[stage])
    records = {labels: _joined([lag.records for lag in lags], sum) for labels, lags in found.items()}
    seconds = {labels: _joined([lag.seconds for lag in lags], max) for labels, lags in found.items()}
    return [Family("archiver_lag_records", _known(records)), Family("archiver_lag_seconds", _known(seconds))]


def _known(values: Mapping[Labels, float | None]) -> dict[Labels, float]:
    # A missing series is visible to an alert; a 0 would say that all is well.
    return {labels: value for labels, value in values.items() if value is not None}


def _has_unknown_lag(partition: PartitionLag) -> bool:
    return any(lag.records is None or lag.seconds is None for lag in partition.stages.values())


def _joined(values: Iterable[float | None], join: Callable[[Iterable[float]], float]) -> float | None:
    """Join the values to one number; None if one of them is unknown."""
    known: list[float] = []
    for value in values:
        # A sum or maximum with an unknown part is unknown.
        if value is None:
            return None
        known.append(value)
    return float(join(known))
