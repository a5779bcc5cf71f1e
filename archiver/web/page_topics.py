"""What the status page shows of the topics: which of them, which of their partitions, in which order, and the
sum of the others.

Pure. Promises that the worst are always among what is shown, and that what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archiver.status.history import LagHistory, last_lag
from archiver.status.lag import STAGES, LagReport, PartitionLag, Stage, StageLag, TopicLag, summed
from archiver.status.reasons import CAUSES
from archiver.web.svg import Chart, records_chart, seconds_chart

PARTITIONS_SHOWN = 50
"""Of each topic."""
PARTITIONS_SHOWN_ALONE = 2000
"""Of a topic that is shown alone."""
TOPICS_SHOWN = 20
"""With their partitions; the others are in the list of topics only."""
LISTED_FIRST = 12
TOPICS_LISTED = 300

_CALM = len(CAUSES)
"""The rank of a partition that nothing holds back."""


@dataclass(frozen=True, slots=True)
class ShownTopic:
    """One topic with its partitions."""

    standing: TopicLag
    lag: StageLag | None
    """Of its last stage."""
    stages: tuple[Stage, ...]
    """Those that it has."""
    rows: tuple[PartitionLag, ...]
    """All of them in order, or the worst of them, the worst first."""
    left: int
    """How many partitions are not among the rows."""
    left_lag: StageLag | None
    """Their records summed, and the greatest of their ages."""
    troubled: int
    """Partitions that something holds back, other than that they are not due yet."""
    charts: tuple[Chart, ...]
    opened: bool
    """Whether its partitions are shown at once."""


@dataclass(frozen=True, slots=True)
class ShownTopics:
    """The topics of the page."""

    listed: tuple[tuple[TopicLag, StageLag | None, int], ...]
    """Every topic, the worst first, with its lag and its number of troubled partitions; as many as are
    listed."""
    listed_first: int
    """So many of them at once, the others behind a line to open."""
    listed_left: int
    shown: tuple[ShownTopic, ...]
    total: int
    unknown: bool
    """A topic was asked for that the log does not have."""


def chosen_topics(standing: LagReport, history: LagHistory, only: str | None) -> ShownTopics:
    """What to show; with `only`, one topic and as much of it as there is room for."""
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
    """The worst first: by what holds its worst partition back, then by its age."""
    lag = last_lag(topic)
    worst = min((_severity(partition) for partition in topic.partitions), default=_CALM)
    return worst, -_seconds(lag)


def _severity(partition: PartitionLag) -> int:
    return _CALM if partition.cause is None else CAUSES.index(partition.cause)


def _seconds(lag: StageLag | None) -> float:
    """For ordering: what cannot be told is worse than any number."""
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
