"""Public Python interface: `from archiver import Writer, Reader`.

Both take the path of a configuration file. All other modules are internal and may change with any version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.app.application import open_application
from archiver.config.settings import Settings, load_settings
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.stream.records import StreamBatch, StreamRecord
from intake.log.clock_check import check_start_clock
from intake.records import Record
from intake.write import producer as producing
from intake.write.acknowledgements import PendingBatch, PendingRecord
from intake.write.metrics import metrics_of


def _settings_of(config: str | os.PathLike[str]) -> Settings:
    """Load the configuration; raises `ConfigInvalid` without its chain of causes, which the message has."""
    try:
        return load_settings(Path(config), os.environ)
    except ConfigInvalid as error:
        # Under another name, because Python deletes `error` at the end of the block.
        problem = error
    # Raised outside the `except` block, because Python would otherwise attach the cause as context.
    raise problem.with_traceback(None) from None


class Writer:
    """Sends records. Thread-safe; a context manager.

    A record is safe when its acknowledgement says `ok`: then its offset is final. `failed` means that it was
    certainly not stored, `unknown` that it may be stored. With an idempotent `producer` an unknown record can
    be sent again.
    """

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Open the configuration file `config` and create its topics that do not exist. Raises
        `ConfigInvalid`.
        """
        settings = _settings_of(config)
        self._application = open_application(settings, os.environ)
        try:
            # Opening reads the intake log, so its newest ingest time is known.
            newest_us = self._application.sequencer.fold.newest_us
            # A clock far ahead would raise the ingest time of all later records for good.
            check_start_clock(
                self._application.objects, SystemClock(), newest_us, settings.intake.clock_skew_max
            )
            # Last: the writer starts a thread, which nothing would end if a check failed.
            self._writer = self._application.intake.writer()
        # An opened application holds connections and threads, also if the writer cannot start.
        except BaseException:
            self._application.close()
            raise

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> PendingRecord:
        """Send one record; wait for its acknowledgement with `.result(timeout_s)`.

        `timestamp_us` is the event time in microseconds since 1970 UTC (default: now). Without `partition`
        the key selects it, as in Kafka's default partitioner. If it raises, nothing was sent: `NotFound`;
        `RecordRefused`, also for a record that does not decode with `validate: reject`; `RetryLater` if the
        queue is full or no schema is available (`Halt` if that needs an operator). With `validate: dlq` a
        record that does not decode goes to another topic, which the acknowledgement names.
        """
        # A tuple: the caller may change its list while the record is queued.
        return self._writer.send(topic, Record(key, value, tuple(headers), timestamp_us), partition)

    def send_batch(
        self, topic: str, batch: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> PendingBatch:
        """Send many records at once.

        Columns: `value` and `key` (binary), `headers`, `event_timestamp`, `partition`; all but `value` are
        optional. With `validate: reject` a row that does not decode is acknowledged as failed; inside a
        transaction the whole batch is refused.
        """
        return self._writer.send_batch(topic, batch, partition)

    def producer(
        self, transactional_id: str | None = None, *, transaction_timeout_s: float = 60.0
    ) -> Producer:
        """Open an idempotent producer: a record that is sent again is in the log once, at its first offset.

        With a transactional id it sends in transactions, which readers see as a whole or not at all. Opening
        the same id again fences this producer and aborts its open transaction. A transaction that is open
        for longer than `transaction_timeout_s` (at most `intake.transaction_timeout_max`) is aborted by the
        next running writer, `archiver archive` or `archiver clean`. Raises `InvalidInput`, `RetryLater`, or
        `OutcomeUnknown` (open it again).
        """
        return Producer(
            producing.Producer.open(
                self._writer, transactional_id, transaction_timeout_s=transaction_timeout_s
            )
        )

    def resume_producer(self, producer_id: int, epoch: int) -> Producer:
        """Resume a producer of another process that does not run any more.

        Sequence numbers continue after its newest record in the log. First send its unacknowledged records
        again, with their numbers: if they are not in the log, new records would get the same numbers. Its
        open transaction stays open. Raises `NotFound` if the log does not have the producer (any more),
        `ProducerFenced` if it was opened again.
        """
        return Producer(producing.Producer.resume(self._writer, producer_id, epoch))

    def metrics(self) -> dict[str, float]:
        """Metrics by the names in `archiver.runtime.logging.METRICS`."""
        return metrics_of(self._writer.metrics())

    def flush(self) -> None:
        """Write all records sent so far and wait for their outcomes."""
        self._writer.flush()

    def close(self) -> None:
        """Write all records sent so far, then close."""
        # The writer first: its last flush needs the stores and the log.
        try:
            self._writer.close()
        finally:
            self._application.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer:
    """An idempotent producer of a `Writer`. It ends with the writer and needs no close.

    Records are numbered per topic and partition in the order of sending. After `failed`, send the record
    again; it gets a new number. After `unknown`, send it again with its number (`PendingRecord.sequence`). If
    it is in the log already, the acknowledgement has its first offset. Until then further records for that
    partition fail. Never send the number of a failed record: another record may have it.
    """

    def __init__(self, producer: producing.Producer) -> None:
        """Wrap an open producer; use `Writer.producer`."""
        self._producer = producer

    @property
    def producer_id(self) -> int:
        """Its id in the intake log; with `epoch` it can be resumed."""
        return self._producer.producer_id

    @property
    def epoch(self) -> int:
        """Increases by one each time its transactional id is opened; older epochs are fenced."""
        return self._producer.epoch

    @property
    def transactional_id(self) -> str | None:
        """None for a producer without transactions."""
        return self._producer.transactional_id

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_us: int | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> PendingRecord:
        """Send one record, as `Writer.send`.

        `sequence` is the number of a record that was sent before; it needs the partition of that time
        (`PendingRecord.partition`). Raises also `ProducerFenced`, `TransactionFailed`, and `InvalidInput` for
        a transactional producer outside a transaction.
        """
        return self._producer.send(
            topic, Record(key, value, tuple(headers), timestamp_us), partition, sequence
        )

    def send_batch(
        self,
        topic: str,
        batch: pa.Table | pa.RecordBatch,
        partition: int | None = None,
        *,
        sequence: int | Sequence[int] | npt.NDArray[np.int32] | None = None,
    ) -> PendingBatch:
        """Send many records, as `Writer.send_batch`.

        `sequence`, for rows that were sent before: the number of the first row if all are of one partition,
        else one per row (`PendingBatch.sequences`; a row with -1 had none and is left out). It needs the
        partition of each row (`PendingBatch.partitions`). Raises as `send`.
        """
        return self._producer.send_batch(topic, batch, partition, sequence)

    def begin(self) -> None:
        """Begin a transaction.

        Raises `InvalidInput` if one is open or without a transactional id, and `ProducerFenced`.
        """
        self._producer.begin()

    def commit(self) -> None:
        """Commit the transaction; returns when all its records are visible.

        Raises `TransactionFailed` if one of them is not certainly stored: abort then. Raises `ProducerFenced`
        if the transaction was aborted, because its id was opened again or it timed out. After
        `OutcomeUnknown` or `RetryLater`, commit again.
        """
        self._producer.commit()

    def abort(self) -> None:
        """Abort the transaction: its records are never visible.

        Raises as `commit` except `TransactionFailed`. After `OutcomeUnknown` or `RetryLater`, abort again.
        """
        self._producer.abort()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin; commit at the end of the block, abort if it raises. After `OutcomeUnknown` at the end,
        `commit` again resolves it.
        """
        with self._producer.transaction():
            yield self


class Reader:
    """Reads records, byte for byte as they were sent, from archives and from intake. A context manager."""

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Open the configuration file `config`. Raises `ConfigInvalid`."""
        # Each method reads the logs to their tails again, so a reader also sees newer records.
        self._application = open_application(_settings_of(config), os.environ)

    def topics(self) -> dict[str, int]:
        """Topic names and their numbers of partitions."""
        # `backlog` reads the log to its tail, so topics of other processes are included.
        return {name: state.partitions for name, state in self._application.backlog().topics_by_name.items()}

    def end_offsets(self, topic: str) -> list[int]:
        """Next offset of each partition."""
        state = self._application.topic(topic)
        return [
            self._application.sequencer.fold.next_offset((state.topic_id, partition))
            for partition in range(state.partitions)
        ]

    def read(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: int = 0,
        limit: int | None = None,
        uncommitted: bool = False,
    ) -> Iterator[StreamRecord]:
        """Committed records of the partitions, one partition after another, in offset order from `start`.

        `limit` is the maximum number of records in all. Offsets of aborted transactions are left out. Reading
        ends before the first open transaction; with `uncommitted` it continues.
        """
        batches = self.read_batches(topic, partitions, start=start, limit=limit, uncommitted=uncommitted)
        # A generator: reading starts with the first record that is taken.
        return (record for batch in batches for record in batch)

    def read_batches(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: int = 0,
        limit: int | None = None,
        uncommitted: bool = False,
    ) -> Iterator[StreamBatch]:
        """As `read`, in Arrow batches. Raises `NotFound` for an unknown topic or partition, `InvalidInput`
        for an offset beyond the end.
        """
        state = self._application.topic(topic)
        stream = self._application.stream()
        remaining = limit
        for partition in range(state.partitions) if partitions is None else partitions:
            # Before the next partition is opened.
            if remaining == 0:
                return
            for batch in stream.read_batches(
                state.topic_id, partition, start, remaining, uncommitted=uncommitted
            ):
                yield batch
                if remaining is not None:
                    # One limit for all partitions together.
                    remaining -= batch.records.num_rows

    def close(self) -> None:
        """Close logs and stores."""
        self._application.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
