"""Recent lag and traffic of every topic for the status page: a bounded number of samples in memory.

Memory does not grow with time, calls or topics. Only the monotonic clock is used, so setting the wall clock
has no effect. Thread-safe. `dump` and `restore` carry it over a restart (`chart_file`).
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from archiver.status.lag import STAGES, LagReport, StageLag, TopicLag
from archiver.status.rates import Accepted

# More than the chart has units of width, so no step is visible as such.
STEPS = 480
"""Samples per topic. Two arrays of doubles and two of floats: 11.5 KB a topic."""
SERIES = ("seconds", "records", "records_per_s", "bytes_per_s")
"""The arrays of a topic."""


@dataclass(frozen=True, slots=True)
class LagSample:
    """Worst lag, and mean traffic, of one step of time."""

    age_s: float
    """From the middle of the step to the newest sample of all; not below 0."""
    seconds: float | None
    """Age of the oldest record that had not passed the topic's last stage; None if unknown or not sampled."""
    records: int | None
    """Number of those records."""
    records_per_s: float | None = None
    """Records accepted per second; None if unknown or not sampled."""
    bytes_per_s: float | None = None
    """Raw bytes of the records accepted per second."""


@dataclass(frozen=True, slots=True)
class KeptSeries:
    """The samples of one topic outside of a `LagHistory`."""

    steps_ago: int
    """Steps from its newest sample to the newest of all."""
    values: Mapping[str, array[float]]
    """By a name of `SERIES`: `STEPS` values, the oldest first; NaN: not known."""


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """A whole history, with ages instead of times."""

    ago_s: float
    """Age of the newest sample."""
    span_s: float
    known_s: float
    """Length of the history."""
    topics: Mapping[str, KeptSeries]


def _doubles() -> array[float]:
    return array("d", [math.nan]) * STEPS


def _floats() -> array[float]:
    return array("f", [math.nan]) * STEPS


@dataclass(slots=True)
class _Series:
    """By step modulo `STEPS`; NaN: not known."""

    last_step: int
    seconds: array[float] = field(default_factory=_doubles)
    records: array[float] = field(default_factory=_doubles)
    records_per_s: array[float] = field(default_factory=_floats)
    bytes_per_s: array[float] = field(default_factory=_floats)
    step_s: float = 0.0
    """Time in `last_step` of which the traffic is known."""
    step_records: float = 0.0
    step_bytes: float = 0.0


class LagHistory:
    """Lag and traffic of at most `topics_max` topics over the last `span_s` seconds."""

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
            return self._known_s()

    def _known_s(self) -> float:
        return 0.0 if self._began_s is None else min(self._span_s, self._newest_s - self._began_s)

    def add(
        self, standing: LagReport, monotonic_s: float, accepted: Mapping[str, Accepted] | None = None
    ) -> None:
        """Add a sample of every topic; `accepted` is its traffic since the sample before. Topics beyond
        `topics_max` are left out until the samples of another topic are too old.
        """
        with self._lock:
            if self._began_s is None:
                self._began_s = self._newest_s = monotonic_s
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
                _advance(series, step)
                _take_lag(series, step, last_lag(topic))
                if accepted is not None and (found := accepted.get(topic.topic)) is not None:
                    _take_traffic(series, step, found)

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

    def newest_traffic(self, topic: str) -> LagSample | None:
        """The newest sample with a known traffic, as `samples` has it, without making the others."""
        with self._lock:
            series = self._topics.get(topic)
            if series is None:
                return None
            newest = min(self._step(self._newest_s), series.last_step)
            for step in range(newest, self._step(self._newest_s) - STEPS, -1):
                if not math.isnan(series.records_per_s[step % STEPS]):
                    return self._sample(series, step)
            return None

    def dump(self, monotonic_s: float) -> KeptHistory | None:
        """A copy of everything; None without a sample."""
        with self._lock:
            if self._began_s is None:
                return None
            newest = self._step(self._newest_s)
            topics = {
                name: KeptSeries(
                    newest - series.last_step,
                    {one: _in_order(getattr(series, one), series.last_step) for one in SERIES},
                )
                for name, series in self._topics.items()
            }
            ago_s = max(0.0, monotonic_s - self._newest_s)
            return KeptHistory(ago_s, self._span_s, self._known_s(), topics)

    def restore(self, kept: KeptHistory, monotonic_s: float) -> bool:
        """Continue a history. False, and nothing is changed, if there are samples already, or if the kept
        ones are too old or have another span.
        """
        with self._lock:
            if self._began_s is not None or kept.span_s != self._span_s or kept.ago_s >= self._span_s:
                return False
            self._newest_s = monotonic_s - kept.ago_s
            self._began_s = self._newest_s - min(self._span_s, kept.known_s)
            newest = self._step(self._newest_s)
            for name, one in list(kept.topics.items())[: self._topics_max]:
                series = self._topics[name] = _Series(newest - one.steps_ago)
                for which in SERIES:
                    # The numbers of the steps are others in this process.
                    getattr(series, which)[:] = _as_ring(one.values[which], series.last_step)
                self._continue_step(series)
            return True

    def _continue_step(self, series: _Series) -> None:
        """Let a kept mean count for a whole step: the samples after a quick restart must not replace it."""
        place = series.last_step % STEPS
        records_per_s, bytes_per_s = series.records_per_s[place], series.bytes_per_s[place]
        if not math.isnan(records_per_s) and not math.isnan(bytes_per_s):
            series.step_s = self._span_s / STEPS
            series.step_records = records_per_s * series.step_s
            series.step_bytes = bytes_per_s * series.step_s

    def _sample(self, series: _Series, step: int) -> LagSample:
        # The arrays are rings: outside of this range a place has the sample of another step.
        fresh = series.last_step - STEPS < step <= series.last_step
        place = step % STEPS

        def known(values: array[float]) -> float | None:
            return None if not fresh or math.isnan(values[place]) else values[place]

        records = known(series.records)
        middle_s = (step + 0.5) * self._span_s / STEPS
        return LagSample(
            age_s=max(0.0, self._newest_s - middle_s),
            seconds=known(series.seconds),
            records=None if records is None else round(records),
            records_per_s=known(series.records_per_s),
            bytes_per_s=known(series.bytes_per_s),
        )

    def _step(self, monotonic_s: float) -> int:
        # Steps are absolute, so all topics share their borders.
        return math.floor(monotonic_s * STEPS / self._span_s)


def last_lag(topic: TopicLag) -> StageLag | None:
    """The lag of the last stage that the topic has; None if it has no partition."""
    return next((lag for stage in reversed(STAGES) if (lag := topic.lag(stage)) is not None), None)


def _in_order(values: array[float], last_step: int) -> array[float]:
    """A ring from its oldest place on."""
    oldest = (last_step + 1) % STEPS
    return values[oldest:] + values[:oldest]


def _as_ring(values: array[float], last_step: int) -> array[float]:
    """The reverse of `_in_order`."""
    behind = STEPS - (last_step + 1) % STEPS
    return values[behind:] + values[:behind]


def _advance(series: _Series, step: int) -> None:
    """Clear the steps since the last sample."""
    # At most one turn of the ring, however long the pause was.
    for passed in range(max(series.last_step, step - STEPS) + 1, step + 1):
        for one in SERIES:
            getattr(series, one)[passed % STEPS] = math.nan
    if step != series.last_step:
        series.step_s, series.step_records, series.step_bytes = 0.0, 0.0, 0.0
    series.last_step = step


def _take_lag(series: _Series, step: int, lag: StageLag | None) -> None:
    place = step % STEPS
    if lag is not None and lag.seconds is not None:
        # The worst sample of a step stays, so that a peak is visible.
        series.seconds[place] = max(lag.seconds, _or_zero(series.seconds[place]))
    if lag is not None and lag.records is not None:
        series.records[place] = max(lag.records, _or_zero(series.records[place]))


def _take_traffic(series: _Series, step: int, accepted: Accepted) -> None:
    series.step_s += accepted.seconds
    series.step_records += accepted.records
    series.step_bytes += accepted.bytes
    # The mean of the step, so that the area of the chart is the number of records.
    series.records_per_s[step % STEPS] = series.step_records / series.step_s
    series.bytes_per_s[step % STEPS] = series.step_bytes / series.step_s


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
