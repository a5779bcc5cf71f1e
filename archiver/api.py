"""The public Python interface: `from archiver import Writer, Reader`.

Both take the path of a configuration file. Everything else in the three packages is internal and may change
with any version.
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
from intake.write.writer import metrics_of


def _settings_of(config: str | os.PathLike[str]) -> Settings:
    """The configuration; raises `ConfigInvalid` with nothing before it in its traceback: the causes are in
    its text.
    """
    try:
        return load_settings(Path(config), os.environ)
    except ConfigInvalid as error:
        problem = error
    raise problem.with_traceback(None) from None


class Writer:
    """Sends records. Thread-safe; a context manager.

    A record is safe when its acknowledgement says `ok`: then it has its offset for good. `failed` means that
    it is certainly not there, `unknown` that it may be; to find out, send through an idempotent `producer`
    and send again what is unknown.
    """

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Open the configuration file `config`; topics in it that do not exist are created. Raises
        `ConfigInvalid`.
        """
        settings = _settings_of(config)
        self._application = open_application(settings, os.environ)
        try:
            newest_us = self._application.sequencer.fold.newest_us
            check_start_clock(
                self._application.objects, SystemClock(), newest_us, settings.intake.clock_skew_max
            )
            self._writer = self._application.intake.writer()
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
        """Hand over one record; wait for its acknowledgement with `.result(timeout_s)`.

        `timestamp_us` is the event time in microseconds since 1970 UTC (default: now). Without `partition`
        the key decides, as Kafka's default partitioner does. Raises `NotFound`, `RecordRefused` (also if it
        does not decode and the topic says `validate: reject`), or `RetryLater` if there is no room, or no
        schema to judge it by (`Halt` if somebody must correct that first); then nothing was sent. A record
        that does not decode may go into another topic (`validate: dlq`): the acknowledgement names it.
        """
        return self._writer.send(topic, Record(key, value, tuple(headers), timestamp_us), partition)

    def send_batch(
        self, topic: str, batch: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> PendingBatch:
        """Hand over many records at once.

        Columns: `value` and `key` (binary), `headers`, `event_timestamp`, `partition`; all but `value` are
        optional. A row that does not decode, where the topic refuses that, is acknowledged as failed; a batch
        in a transaction is refused as a whole.
        """
        return self._writer.send_batch(topic, batch, partition)

    def producer(
        self, transactional_id: str | None = None, *, transaction_timeout_s: float = 60.0
    ) -> Producer:
        """Open an idempotent producer: a record that is sent again is in the log once, at its first offset.

        With a transactional id it sends in transactions, which others see as a whole or not at all; the same
        id opened elsewhere fences this one and aborts what it left open. A transaction that is still open
        after `transaction_timeout_s` (at most `intake.transaction_timeout_max`) is aborted by the next
        running writer, `archiver archive` or `archiver clean`. Raises `InvalidInput`, `RetryLater`, or
        `OutcomeUnknown` (open it again).
        """
        return Producer(
            producing.Producer.open(
                self._writer, transactional_id, transaction_timeout_s=transaction_timeout_s
            )
        )

    def resume_producer(self, producer_id: int, epoch: int) -> Producer:
        """Go on with a producer that another process opened and that does not run any more.

        Sequence numbers go on behind its newest record in the log. What it sent and never heard of must be
        sent again, with its numbers, before anything else: if it did not get into the log, new records would
        get its numbers. A transaction that it left open is open here. Raises `NotFound` if the log does not
        know it (any more), `ProducerFenced` if it was opened anew.
        """
        return Producer(producing.Producer.resume(self._writer, producer_id, epoch))

    def metrics(self) -> dict[str, float]:
        """The numbers to watch, by the names in `archiver.runtime.logging.METRICS`."""
        return metrics_of(self._writer.metrics())

    def flush(self) -> None:
        """Write what was sent up to now and wait for its outcome."""
        self._writer.flush()

    def close(self) -> None:
        """Write what was sent, then let go of everything."""
        try:
            self._writer.close()
        finally:
            self._application.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer:
    """An idempotent producer of a `Writer`. It ends with the writer; it has nothing to close.

    Records are numbered per topic and partition in the order of sending. After `failed`, send the record
    again: it gets a new number. After `unknown`, send it again with the number it had
    (`PendingRecord.sequence`): if it is in the log already, the answer is its first offset. Until then
    further records for that partition fail. Never state the number of a record that failed: it may belong to
    another.
    """

    def __init__(self, producer: producing.Producer) -> None:
        """For an open producer; `Writer.producer` makes one."""
        self._producer = producer

    @property
    def producer_id(self) -> int:
        """Its number in the intake log; with `epoch` enough to resume it."""
        return self._producer.producer_id

    @property
    def epoch(self) -> int:
        """Raised by one whenever its transactional id is opened again; older epochs are fenced."""
        return self._producer.epoch

    @property
    def transactional_id(self) -> str | None:
        """None: it has no transactions."""
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
        """Hand over one record, as `Writer.send`.

        `sequence` is the number that the record had when it was sent before; then the partition must be
        named, or there must be a key. Raises also `ProducerFenced`, `TransactionFailed`, and `InvalidInput`
        if it has a transactional id and no transaction is begun.
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
        """Hand over many records, as `Writer.send_batch`.

        `sequence`, for rows that were sent before: the number of the first row if all are of one partition,
        else one per row (`PendingBatch.sequences`; a row with -1 had none and is left out). Raises as `send`.
        """
        return self._producer.send_batch(topic, batch, partition, sequence)

    def begin(self) -> None:
        """Begin a transaction. Raises `InvalidInput` if there is one or without a transactional id,
        `ProducerFenced`.
        """
        self._producer.begin()

    def commit(self) -> None:
        """Make the transaction's records visible, all at once; returns when they are.

        Raises `TransactionFailed` if one of them is not certainly stored (abort then), `ProducerFenced` if it
        was aborted because the id was opened elsewhere or its time was over, `OutcomeUnknown` or
        `RetryLater`: then commit again.
        """
        self._producer.commit()

    def abort(self) -> None:
        """Drop the transaction's records for good. Raises as `commit`, but for `TransactionFailed`; abort
        again after the last two.
        """
        self._producer.abort()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin; commit at the end of the block, abort if it raises. After `OutcomeUnknown` at its end,
        `commit` again settles it.
        """
        with self._producer.transaction():
            yield self


class Reader:
    """Reads records back, byte for byte as they were sent, from archives and from what is not archived yet. A
    context manager.
    """

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Open the configuration file `config`. Raises `ConfigInvalid`."""
        self._application = open_application(_settings_of(config), os.environ)

    def topics(self) -> dict[str, int]:
        """Topic names and their numbers of partitions."""
        return {name: state.partitions for name, state in self._application.backlog().topics_by_name.items()}

    def end_offsets(self, topic: str) -> list[int]:
        """Per partition, the offset that the next record will get."""
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
        """The committed records of the partitions, one partition after the other, each from offset `start` on
        in offset order, `limit` in all. Offsets of aborted transactions are left out, and reading ends before
        the first open one; with `uncommitted` it goes on behind.
        """
        batches = self.read_batches(topic, partitions, start=start, limit=limit, uncommitted=uncommitted)
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
            if remaining == 0:
                return
            for batch in stream.read_batches(
                state.topic_id, partition, start, remaining, uncommitted=uncommitted
            ):
                yield batch
                if remaining is not None:
                    remaining -= batch.records.num_rows

    def close(self) -> None:
        """Let go of everything."""
        self._application.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
