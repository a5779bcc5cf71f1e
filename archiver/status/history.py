"""Recent lag of every topic for the status page: a bounded number of samples in memory.

Memory does not grow with time, calls or topics. Only the monotonic clock is used, so setting the wall clock
has no effect. Thread-safe; a restarted daemon begins with an empty history.
"""

from __future__ import annotations

import math
import threading
from array import array
from dataclasses import dataclass, field

from archiver.status.lag import STAGES, LagReport, StageLag, TopicLag

# More than the chart has units of width, so no step is visible as such.
STEPS = 480
"""Samples per topic. Two arrays of doubles: 7.7 KB a topic."""


@dataclass(frozen=True, slots=True)
class LagSample:
    """Worst sample of one step of time."""

    age_s: float
    """From the middle of the step to the newest sample of all; not below 0."""
    seconds: float | None
    """Age of the oldest record that had not passed the topic's last stage; None if unknown or not sampled."""
    records: int | None
    """Number of those records."""


def _unknown() -> array[float]:
    return array("d", [math.nan]) * STEPS


@dataclass(slots=True)
class _Series:
    """By step modulo `STEPS`; NaN: not known."""

    last_step: int
    seconds: array[float] = field(default_factory=_unknown)
    records: array[float] = field(default_factory=_unknown)


class LagHistory:
    """The lag of at most `topics_max` topics over the last `span_s` seconds."""

    def __init__(self, span_s: float, topics_max: int) -> None:
        self._lock = threading.Lock()
        self._span_s = span_s
        self._topics_max = topics_max
        self._topics: dict[str, _Series] = {}
        self._began_s: float | None = None
        self._newest_s = 0.0

    @property
    def span_s(self) -> float:
        """Maximum length of the history in seconds."""
        return self._span_s

    @property
    def known_s(self) -> float:
        """Present length of the history in seconds; 0.0 before the first sample."""
        with self._lock:
            return 0.0 if self._began_s is None else min(self._span_s, self._newest_s - self._began_s)

    def add(self, standing: LagReport, monotonic_s: float) -> None:
        """Add a sample of every topic. Topics beyond `topics_max` are left out until the samples of another
        topic are too old.
        """
        with self._lock:
            if self._began_s is None:
                self._began_s = monotonic_s
            # The newest time never goes back, also if samples arrive out of order.
            self._newest_s = max(self._newest_s, monotonic_s)
            step = self._step(self._newest_s)
            # A deleted topic makes room for a new one once its last sample is too old.
            for name in [name for name, series in self._topics.items() if series.last_step <= step - STEPS]:
                del self._topics[name]
            for topic in standing.topics:
                series = self._topics.get(topic.topic)
                if series is None:
                    if len(self._topics) >= self._topics_max:
                        continue
                    series = self._topics[topic.topic] = _Series(step)
                _take(series, step, last_lag(topic))

    def topics(self) -> list[str]:
        """Those that have samples, in the order of their names."""
        with self._lock:
            return sorted(self._topics)

    def samples(self, topic: str) -> list[LagSample]:
        """The oldest first, one per step since the topic was first seen; empty if there are none."""
        with self._lock:
            series = self._topics.get(topic)
            if series is None or self._began_s is None:
                return []
            # Up to the newest sample of all: a topic without samples since then ends with unknown steps.
            newest = self._step(self._newest_s)
            first = max(newest - STEPS + 1, self._step(self._began_s))
            return [self._sample(series, step) for step in range(first, newest + 1)]

    def _sample(self, series: _Series, step: int) -> LagSample:
        # The arrays are rings: outside of this range a place has the sample of another step.
        fresh = series.last_step - STEPS < step <= series.last_step
        seconds = series.seconds[step % STEPS] if fresh else math.nan
        records = series.records[step % STEPS] if fresh else math.nan
        middle_s = (step + 0.5) * self._span_s / STEPS
        return LagSample(
            age_s=max(0.0, self._newest_s - middle_s),
            seconds=None if math.isnan(seconds) else seconds,
            records=None if math.isnan(records) else round(records),
        )

    def _step(self, monotonic_s: float) -> int:
        # Steps are absolute, so all topics share their borders.
        return math.floor(monotonic_s * STEPS / self._span_s)


def last_lag(topic: TopicLag) -> StageLag | None:
    """The lag of the last stage that the topic has; None if it has no partition."""
    return next((lag for stage in reversed(STAGES) if (lag := topic.lag(stage)) is not None), None)


def _take(series: _Series, step: int, lag: StageLag | None) -> None:
    """Add a sample to its step, after clearing the steps since the last sample."""
    # At most one turn of the ring, however long the pause was.
    for passed in range(max(series.last_step, step - STEPS) + 1, step + 1):
        series.seconds[passed % STEPS] = series.records[passed % STEPS] = math.nan
    series.last_step = step
    place = step % STEPS
    if lag is not None and lag.seconds is not None:
        # The worst sample of a step stays, so that a peak is visible.
        series.seconds[place] = max(lag.seconds, _or_zero(series.seconds[place]))
    if lag is not None and lag.records is not None:
        series.records[place] = max(lag.records, _or_zero(series.records[place]))


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
