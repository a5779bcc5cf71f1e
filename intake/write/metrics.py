"""The numbers of an intake writer, and their names in Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

LAST: Final = frozenset({"upload_seconds", "append_seconds"})
"""Durations of the last operation; of several writers the longest counts."""
GAUGES: Final = LAST | {"queue_bytes", "queue_bytes_max"}
"""Numbers that say how things are now; the others only grow."""


@dataclass(frozen=True, slots=True)
class WriterMetrics:
    """Counters of a writer since it was opened, and its present load. `archiver.runtime.metric_names`
    explains each number.
    """

    queue_bytes: int
    queue_bytes_max: int
    records_accepted: int
    bytes_accepted: int
    records_ok: int
    records_failed: int
    records_unknown: int
    flushes: int
    producer_waits: int
    producer_wait_seconds: float
    upload_seconds: float
    append_seconds: float
    clock_refusals: int

    def to_json(self) -> Mapping[str, float]:
        """The numbers by their names here."""
        return asdict(self)


def metrics_of(numbers: WriterMetrics) -> dict[str, float]:
    """The writer's numbers by their Prometheus names."""
    return {
        "archiver_intake_queue_bytes": numbers.queue_bytes,
        "archiver_intake_queue_bytes_max": numbers.queue_bytes_max,
        "archiver_intake_records_accepted_total": numbers.records_accepted,
        "archiver_intake_bytes_accepted_total": numbers.bytes_accepted,
        "archiver_intake_records_ok_total": numbers.records_ok,
        "archiver_intake_records_failed_total": numbers.records_failed,
        "archiver_intake_records_unknown_total": numbers.records_unknown,
        "archiver_intake_flushes_total": numbers.flushes,
        "archiver_intake_producer_waits_total": numbers.producer_waits,
        "archiver_intake_producer_wait_seconds_total": numbers.producer_wait_seconds,
        "archiver_intake_upload_seconds": numbers.upload_seconds,
        "archiver_intake_append_seconds": numbers.append_seconds,
        "archiver_intake_clock_refusals_total": numbers.clock_refusals,
    }
