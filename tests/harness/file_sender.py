"""A sender that drops files where a source ingests them, as another program would: written elsewhere, then
renamed.

Owns the ledger of what was put into which file. These records get no acknowledgement; the judge requires each
of them there once, in the file's order, as soon as the file has its name.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness.http_sender import Place, json_lines
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import Payload, payload

FileKind = Literal["files-jsonl", "files-parquet"]
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))


class FileSender:
    """One program that drops files of one format into one folder."""

    def __init__(
        self,
        ledger: LedgerFile,
        seed: int,
        name: str,
        kind: FileKind,
        inbox: Path,
        topic: str,
        partitions: int,
        file_records_max: int,
    ) -> None:
        """`inbox` is the folder; a draft is written into its parent, which is in the same file system."""
        self._ledger = ledger
        self._seed = seed
        self._name = name
        self._form = kind.removeprefix("files-")
        self._inbox = inbox
        self._topic = topic
        self._partitions = partitions
        self._file_records_max = file_records_max
        self._rng = random.Random(f"{seed}/{name}")
        self._number = 0
        self._files = 0

    def burst(self) -> None:
        """One file."""
        rng = self._rng
        by_key = rng.random() < 0.4
        places = []
        for _ in range(rng.randint(1, self._file_records_max)):
            places.append(Place(self._number, None if by_key else rng.randrange(self._partitions)))
            self._number += 1
        file = f"{self._name}-{self._files:06}.{self._form}"
        contents = [payload(self._seed, self._name, place.number) for place in places]
        draft = self._inbox.parent / f"{file}.draft"
        with draft.open("wb") as stream:
            stream.write(
                parquet_rows(places, contents) if self._form == "parquet" else json_lines(places, contents)
            )
            stream.flush()
            os.fsync(stream.fileno())
        records = [
            [place.number, self._topic, place.partition, None, content.digest]
            for place, content in zip(places, contents, strict=True)
        ]
        self._ledger.write(
            "send", sender=f"{self._name}/{self._files}", attempt=1, file=file, records=records
        )
        draft.rename(self._inbox / file)
        self._ledger.write("dropped", file=file)
        self._files += 1

    def close(self) -> None:
        """No more files."""


def parquet_rows(places: Sequence[Place], contents: Sequence[Payload]) -> bytes:
    """A Parquet file with a record's JSON fields as columns, but for the topic."""
    columns = {
        "partition": pa.array([place.partition for place in places], pa.int32()),
        "timestamp": pa.array([content.timestamp_us for content in contents], pa.timestamp("us", tz="UTC")),
        "key": pa.array([content.key for content in contents], pa.binary()),
        "value": pa.array([content.value for content in contents], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in content.headers] for content in contents],
            _HEADERS,
        ),
    }
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, row_group_size=50)
    return stream.getvalue()
