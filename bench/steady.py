"""Runs senders in their own processes at a steady rate, independent of the measuring process and
the daemon.

Records are sent at their scheduled times, even if earlier ones are still unacknowledged. Times are
of the clock that all processes of the machine share.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from archiver import Writer
from bench.orders import make_values
from intake.write.acknowledgements import BatchAcknowledgement, PendingBatch

ACKNOWLEDGED_S = 60.0
MADE = 100_000
"""Distinct orders, which are made before the first send and then repeated."""
SLOTS_PER_S = 50
"""Send times per second for single records."""
Stop = Any
"""An event of `multiprocessing`."""


@dataclass(frozen=True)
class Batch:
    """An acknowledged batch."""

    due_s: float
    """Scheduled time."""
    acknowledged_s: float
    ends: dict[int, int]
    """End offset by partition."""


class Sender:
    """A process that sends until it is stopped, as a context manager."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        """`work` is `send_batches` or `send_singly`, with `arguments`."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._reported, tell = context.Pipe(duplex=False)
        self._process = context.Process(target=_tell, args=(work, arguments, self._stop, tell))

    def __enter__(self) -> Self:
        self._process.start()
        assert self._take() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join(ACKNOWLEDGED_S)
        self._process.kill()

    def end(self) -> Any:
        """Stop sending and return the result of `work`."""
        self._stop.set()
        return self._take()

    def _take(self) -> Any:
        assert self._reported.poll(2 * ACKNOWLEDGED_S), "no answer from the sender"
        return self._reported.recv()


def _tell(work: Callable[..., Any], arguments: tuple[Any, ...], stop: Stop, tell: Any) -> None:
    tell.send(work(*arguments, stop, lambda: tell.send("ready")))


def send_batches(
    config: Path, topic: str, rate: int, batches_per_s: int, stop: Stop, ready: Callable[[], None]
) -> list[Batch]:
    """Send orders with keys through `Writer.send_batch`; return all batches in order. `rate` is
    records per second.
    """
    records = rate // batches_per_s
    keys = pa.array([b"customer-%06d" % (n * 7919 % MADE) for n in range(MADE)], pa.binary())
    made = pa.table({"key": keys, "value": make_values(MADE, 7)})
    pieces = [made.slice(at, records) for at in range(0, MADE - records + 1, records)]
    with Writer(config) as writer, ThreadPoolExecutor(1) as waiter:

        def acknowledged(pending: PendingBatch, due_s: float) -> Batch:
            found = pending.result(ACKNOWLEDGED_S)
            return Batch(due_s, time.monotonic(), _ends(found))

        ready()
        answers: list[Future[Batch]] = []
        began_s = time.monotonic()
        while not stop.is_set():
            due_s = began_s + len(answers) / batches_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            pending = writer.send_batch(topic, pieces[len(answers) % len(pieces)])
            answers.append(waiter.submit(acknowledged, pending, due_s))
        return [answer.result() for answer in answers]


def _ends(found: BatchAcknowledgement) -> dict[int, int]:
    """Return the end offset by partition; every record must be stored."""
    assert found.outcome == "ok", found.verdicts
    partitions = np.asarray(found.partitions)
    return {int(one): int(found.offsets[partitions == one].max()) + 1 for one in np.unique(partitions)}


def send_singly(
    config: Path, topics: list[str], partitions: int, stop: Stop, ready: Callable[[], None]
) -> dict[str, float]:
    """Send a record to each partition once a second, evenly spread, through `Writer.send`. Return
    records, seconds and the largest delay.
    """
    values = make_values(1000, 7).to_pylist()
    places = [(topic, partition) for partition in range(partitions) for topic in topics]
    with Writer(config) as writer:
        ready()
        sent, late_s, began_s = 0, 0.0, time.monotonic()
        while not stop.is_set():
            due = int((time.monotonic() - began_s) * SLOTS_PER_S + 1) * len(places) // SLOTS_PER_S
            for number in range(sent, due):
                topic, partition = places[number % len(places)]
                writer.send(topic, values[number % len(values)], partition=partition)
            sent = max(sent, due)
            late_s = max(late_s, time.monotonic() - began_s - sent / len(places))
            time.sleep(1 / SLOTS_PER_S)
        writer.flush()
        assert writer.metrics()["archiver_intake_records_ok_total"] == sent, "a record was not stored"
        return {"records": sent, "seconds": time.monotonic() - began_s, "late_s_max": late_s}
