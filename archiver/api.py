"""The public Python interface: `from archiver import Writer, Reader`.

Both take the path of a configuration file. Everything else in the three packages is internal and may change with any version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa

from archiver.assemble import open_application
from archiver.settings import load_settings
from archiver.stream.records import StreamBatch, StreamRecord
from intake.acknowledgements import PendingBatch, PendingRecord
from intake.records import Record


class Writer:
    """Sends records. Thread-safe; a context manager.

    A record is safe when its acknowledgement says `ok`: then it has its offset for good. `failed` means that it is certainly not there,
    `unknown` that it may be.
    """

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Open the configuration file `config`; topics in it that do not exist are created. Raises `ConfigInvalid`."""
        self._application = open_application(load_settings(Path(config), os.environ), os.environ)
        try:
            self._writer = self._application.writer()
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

        `timestamp_us` is the event time in microseconds since 1970 UTC (default: now). Without `partition` the key decides, as Kafka's
        default partitioner does. Raises `NotFound`, `RecordRefused`, or `RetryLater` if there is no room; then nothing was sent.
        """
        return self._writer.send(topic, Record(key, value, tuple(headers), timestamp_us), partition)

    def send_batch(self, topic: str, batch: pa.Table | pa.RecordBatch, partition: int | None = None) -> PendingBatch:
        """Hand over many records at once.

        Columns: `value` and `key` (binary), `headers`, `event_timestamp`, `partition`; all but `value` are optional.
        """
        return self._writer.send_batch(topic, batch, partition)

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


class Reader:
    """Reads records back, byte for byte as they were sent, from archives and from what is not archived yet. A context manager."""

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Open the configuration file `config`. Raises `ConfigInvalid`."""
        self._application = open_application(load_settings(Path(config), os.environ), os.environ)

    def topics(self) -> dict[str, int]:
        """Topic names and their numbers of partitions."""
        return {name: state.partitions for name, state in self._application.intake().topics_by_name.items()}

    def end_offsets(self, topic: str) -> list[int]:
        """Per partition, the offset that the next record will get."""
        state = self._application.topic(topic)
        return [self._application.sequencer.fold.next_offset((state.topic_id, partition)) for partition in range(state.partitions)]

    def read(
        self, topic: str, partitions: Iterable[int] | None = None, *, start: int = 0, limit: int | None = None
    ) -> Iterator[StreamRecord]:
        """The records of the partitions, one partition after the other, each from offset `start` on in offset order, `limit` in all."""
        return (record for batch in self.read_batches(topic, partitions, start=start, limit=limit) for record in batch)

    def read_batches(
        self, topic: str, partitions: Iterable[int] | None = None, *, start: int = 0, limit: int | None = None
    ) -> Iterator[StreamBatch]:
        """As `read`, in Arrow batches. Raises `NotFound` for an unknown topic or partition, `InvalidInput` for an offset beyond the end."""
        state = self._application.topic(topic)
        stream = self._application.stream()
        remaining = limit
        for partition in range(state.partitions) if partitions is None else partitions:
            if remaining == 0:
                return
            for batch in stream.read_batches(state.topic_id, partition, start, remaining):
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
