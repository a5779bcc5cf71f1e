"""Topics and partitions that the status page shows, their order, and the sum of the others. Pure.

The worst are always shown, and omitted ones are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archiver.status.history import LagHistory, last_lag
from archiver.status.lag import STAGES, LagReport, PartitionLag, Stage, StageLag, TopicLag, summed
from archiver.status.reasons import CAUSES
from archiver.web.svg import Chart, records_chart, seconds_chart

PARTITIONS_SHOWN = 50
"""Maximum of partitions shown of each topic."""
PARTITIONS_SHOWN_ALONE = 2000
"""Maximum of partitions of a topic that is shown alone."""
TOPICS_SHOWN = 20
"""Maximum of topics shown with partitions; the others are only in the list."""
LISTED_FIRST = 12
TOPICS_LISTED = 300

_CALM = len(CAUSES)
"""Rank of a partition that is not held back."""


@dataclass(frozen=True, slots=True)
class ShownTopic:
    """One topic with its partitions."""

    standing: TopicLag
    lag: StageLag | None
    """Lag of its last stage."""
    stages: tuple[Stage, ...]
    """Stages of the topic."""
    rows: tuple[PartitionLag, ...]
    """All partitions in order, or only the worst, the worst first."""
    left: int
    """Number of partitions not in `rows`."""
    left_lag: StageLag | None
    """Their summed records and greatest age."""
    troubled: int
    """Partitions that are held back by more than not being due yet."""
    charts: tuple[Chart, ...]
    opened: bool
    """Whether its partitions are shown unfolded."""


@dataclass(frozen=True, slots=True)
class ShownTopics:
    """The topics of the page."""

    listed: tuple[tuple[TopicLag, StageLag | None, int], ...]
    """Listed topics, the worst first, with lag and number of troubled partitions."""
    listed_first: int
    """Number of topics listed unfolded."""
    listed_left: int
    shown: tuple[ShownTopic, ...]
    total: int
    unknown: bool
    """The requested topic is not in the log."""


def chosen_topics(standing: LagReport, history: LagHistory, only: str | None) -> ShownTopics:
    """Choose what to show; with `only`, one topic with more of its partitions."""
    ordered = sorted(standing.topics, key=lambda topic: (*_rank(topic), topic.topic))
    alone = None if only is None else standing.topic(only)
    chosen = ordered[:TOPICS_SHOWN] if only is None else [alone] if alone is not None else []
    listed = [(topic, last_lag(topic), _troubled(topic)) for topic in ordered[:TOPICS_LISTED]]
    most = PARTITIONS_SHOWN if only is None else PARTITIONS_SHOWN_ALONE
    return ShownTopics(
        listed=tuple(listed) if only is None else (),
        listed_first=LISTED_FIRST,
        listed_left=max(0, len(ordered) - TOPICS_LISTED) if only is None else 0,
        shown=tuple(
            _shown(topic, history, most, opened=only is not None or _troubled(topic) > 0 or len(chosen) <= 3)
            for topic in chosen
        ),
        total=len(ordered),
        unknown=only is not None and alone is None,
    )


def _rank(topic: TopicLag) -> tuple[int, float]:
    """Sort key, the worst first: cause of the worst partition, then age."""
    lag = last_lag(topic)
    worst = min((_severity(partition) for partition in topic.partitions), default=_CALM)
    return worst, -_seconds(lag)


def _severity(partition: PartitionLag) -> int:
    return _CALM if partition.cause is None else CAUSES.index(partition.cause)


def _seconds(lag: StageLag | None) -> float:
    """Age for sorting: an unknown age is worse than any number."""
    if lag is None:
        return 0.0
    return float("inf") if lag.seconds is None else lag.seconds


def _troubled(topic: TopicLag) -> int:
    return sum(partition.cause not in (None, "waiting", "due", "off") for partition in topic.partitions)


def _shown(topic: TopicLag, history: LagHistory, most: int, *, opened: bool) -> ShownTopic:
    rows: Sequence[PartitionLag] = topic.partitions
    if len(rows) > most:
        rows = sorted(
            rows,
            key=lambda one: (_severity(one), -_seconds(one.last), -(one.last.records or 0), one.partition),
        )
    left = rows[most:]
    samples, known_s, span_s = history.samples(topic.topic), history.known_s, history.span_s
    return ShownTopic(
        standing=topic,
        lag=last_lag(topic),
        stages=tuple(stage for stage in STAGES if topic.lag(stage) is not None),
        rows=tuple(rows[:most]),
        left=len(left),
        left_lag=summed([partition.last for partition in left]),
        troubled=_troubled(topic),
        charts=(
            seconds_chart(topic.topic, samples, known_s, span_s),
            records_chart(topic.topic, samples, known_s, span_s),
        )
        if samples
        else (),
        opened=opened,
    )
