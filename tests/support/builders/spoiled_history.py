"""A history as a deployment really has it, and one kind of damage for each partition of its largest topic.

The good one: a Protobuf topic whose schema changes half-way, with transactions that were aborted, intake
files that were cleaned away; a topic whose table an external client compacted, then deleted from; one with
archives only; one whose last archives wait for their catalog; one whose first archive is gone because its
retention was over.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from archiver.runtime import failpoints
from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import WAIT_S, Driver, catalog_table
from tests.support.builders.spoiling import (
    Hands,
    Rows,
    bound,
    flip_in_footer,
    flip_in_page,
    path_of,
    records_digest,
    rewritten,
)
from tests.support.catalog.foreign_rows import hide, rewrite
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import DESCRIPTOR_SET, order

ROUNDS = 3
ROWS = 10
GAP = (10, 13)
"""Of every partition of orders: the offsets of an aborted transaction."""
END = ROUNDS * ROWS + 3
STRANGER = 99
"""A partition that the topic does not have."""
MINUTE_US = 60_000_000
HOUR_S = 3600.0


@dataclass
class Place:
    """One partition of orders, and the three archives of it."""

    number: int
    hands: Hands
    files: list[DataFile]

    def path(self, number: int) -> Path:
        return path_of(self.files[number])

    def change(self, number: int, change: Callable[[Rows], Rows], rows: int = 0, **footer: str) -> None:
        """Write one archive again, changed; the table agrees. `rows`: how many more it has than before."""
        rewritten(self.path(number), change, None, **footer)
        file = self.files[number]
        self.hands.reported(file, self.path(number), record_count=file.record_count + rows)


@dataclass(frozen=True)
class Spoiling:
    """One kind of damage, what the deep audit must say of it, and whether the fast one sees it."""

    name: str
    spoil: Callable[[Place], None]
    verdict: str = "invalid"
    why: str = ""
    """A pattern that the reason must match."""
    lists: dict[str, list[list[int]]] = field(default_factory=dict)
    """What stands in `missing` and `doubled`, if anything."""
    fast: str = "invalid"
    """The fast audit's verdict."""


def _moved(rows: Rows, places: range, us: int) -> Rows:
    for place in places:
        kafka = rows[place]["kafka"]
        kafka["ingest_timestamp"] = kafka["ingest_timestamp"] + dt.timedelta(microseconds=us)
    return rows


def _swapped(rows: Rows) -> Rows:
    one, other = rows[3]["kafka"], rows[4]["kafka"]
    one["offset"], other["offset"] = other["offset"], one["offset"]
    return rows


def _other_customer(rows: Rows) -> Rows:
    rows[5]["value"]["customer"] = "bda"
    return rows


def _other_partition(rows: Rows) -> Rows:
    rows[5]["kafka"]["partition"] = STRANGER
    return rows


def _with_aborted(rows: Rows) -> Rows:
    """The second archive begins behind the gap; a row of the gap stands before its first."""
    aborted = {**rows[0], "kafka": {**rows[0]["kafka"], "offset": GAP[1] - 1}}
    return [aborted, *rows]


def _aborted_row(place: Place) -> None:
    rewritten(place.path(1), _with_aborted)
    place.hands.reported(
        place.files[1], place.path(1), record_count=ROWS + 1, offsets=(GAP[1] - 1, GAP[1] + ROWS - 1)
    )


def _altered_with_digest(place: Place) -> None:
    """Damage by a party that knows how digests of records are made."""
    number = ROUNDS - 1
    rewritten(place.path(number), _other_customer)
    rows: Rows = pq.ParquetFile(place.path(number)).read().to_pylist()
    values = [_value(number, row) for row in range(ROWS)]
    values[5] = order(number * 100 + 5, customer="bda")
    place.change(number, lambda rows: rows, records_digest=records_digest(rows, values))


def _overlap(place: Place) -> None:
    """One more file, of an external client, with the end of one archive and the beginning of the next."""
    rows = pa.concat_tables(
        [pq.ParquetFile(place.path(number)).read().slice(low, 5) for number, low in ((1, 5), (2, 0))]
    )
    path = place.path(0).parent / f"overlap-{place.number}.parquet"
    pq.write_table(rows.replace_schema_metadata(None), path)
    place.hands.add(place.files[1], path, record_count=10, offsets=(GAP[1] + 5, GAP[1] + 14))


def _orphan(place: Place) -> None:
    path = place.path(1)
    path.with_name(f"{path.stem[:-8]}00000009.parquet").write_bytes(path.read_bytes())


FIRST, SECOND, THIRD = [0, 10], [13, 23], [23, 33]

SPOILINGS = (
    Spoiling("nothing", lambda place: None, "valid", fast="valid"),
    Spoiling(
        "a row dropped",
        lambda place: place.change(1, lambda rows: rows[:4] + rows[5:], -1),
        why="offsets 17 are not in the table",
        lists={"missing": [[17, 18]]},
    ),
    Spoiling(
        "a file twice in the table",
        lambda place: place.hands.double(place.files[1]),
        why="offsets 13 to 22 are in the table more than once",
        lists={"doubled": [SECOND]},
    ),
    Spoiling(
        "two rows with their offsets swapped",
        lambda place: place.change(1, _swapped),
        why="offset 16 comes after offset 17",
        fast="valid",
    ),
    Spoiling(
        "an ingest time moved back inside a file",
        lambda place: place.change(1, lambda rows: _moved(rows, range(4, 5), -1_000_000)),
        why="the ingest time goes back at offset 17",
        fast="valid",
    ),
    Spoiling(
        "the ingest times of a whole file moved back",
        lambda place: place.change(2, lambda rows: _moved(rows, range(ROWS), -2 * MINUTE_US)),
        why="the ingest time goes back at offset 23.* at offset 22 in",
        fast="valid",
    ),
    Spoiling(
        "an ingest time on another day",
        lambda place: place.change(2, lambda rows: _moved(rows, range(ROWS - 1, ROWS), 86_400_000_000)),
        why="the ingest time of offset 32 does not match",
        fast="valid",
    ),
    Spoiling(
        "a bit flipped in a page",
        lambda place: flip_in_page(place.path(1), "value.customer"),
        why="cannot be read .* was altered",
        lists={"missing": [SECOND]},
        fast="valid",
    ),
    Spoiling(
        "a byte of a value changed, all checksums renewed",
        lambda place: place.change(1, _other_customer),
        why="the digest of its records is .* its footer says",
        fast="valid",
    ),
    Spoiling(
        "the same, and the digest in the footer renewed",
        _altered_with_digest,
        why="that of the same offsets in intake is",
        fast="valid",
    ),
    Spoiling(
        "a bit flipped in the footer",
        lambda place: flip_in_footer(place.path(1)),
        why="its footer is not what its checksum says",
        lists={"missing": [SECOND]},
        fast="valid",
    ),
    Spoiling(
        "a row of another partition",
        lambda place: place.change(1, _other_partition),
        why="holds rows of partitions",
        lists={"missing": [[18, 19]]},
        fast="valid",
    ),
    Spoiling(
        "a row of an aborted transaction",
        _aborted_row,
        why="the table holds rows at offsets 12, which are gaps",
    ),
    Spoiling("an orphan", _orphan, "valid", "^$", fast="valid"),
    Spoiling(
        "an object deleted",
        lambda place: place.path(1).unlink(),
        why="is not in the object store",
        lists={"missing": [SECOND]},
    ),
    Spoiling(
        "an overlap",
        _overlap,
        why="offsets 18 to 27 are in the table more than once",
        lists={"doubled": [[18, 28]]},
    ),
    Spoiling(
        "a file gone from the table",
        lambda place: place.hands.out(place.files[1]),
        why="offsets 13 to 22 are not in the table",
        lists={"missing": [SECOND]},
    ),
)


class History:
    """The good history; `spoil` damages each partition of orders in its own way."""

    def __init__(self, root: Path) -> None:
        archive = {"kind": "iceberg", "catalog": "local"}
        topics = [
            {
                "name": "orders",
                "partitions": len(SPOILINGS),
                "value": {"descriptor_set": "shop.binpb", "message": "shop.Order"},
                "archive": {**archive, "table": "shop.orders"},
            },
            {"name": "clicks", "partitions": 1, "archive": {**archive, "table": "shop.clicks"}},
            {"name": "files", "partitions": 2, "archive": {"kind": "parquet"}},
            {
                "name": "aged",
                "partitions": 1,
                "retention": "2h",
                "archive": {**archive, "table": "shop.aged"},
            },
        ]
        self.deployment = Deployment(root, overrides={"topics": topics})
        self._aged()
        for number in range(ROUNDS):
            self._round(number)
        rewrite(self.deployment, "replace", table="shop.clicks")
        self.hidden_by = hide(self.deployment, lambda offset: offset in (2, 3, 11), "shop.clicks")

    def _aged(self) -> None:
        """Two archives; then retention removes the first of them from ledger, table and, after the deletion
        delay, the store."""
        with Driver(self.deployment) as driver:
            noon_s = _until_noon_s(driver)
            for hours in (-8.0, -5.6):
                driver.clock.ahead_s = noon_s + hours * HOUR_S
                driver.send("aged", [f"{hours} {row}".encode() for row in range(ROWS)], 0)
                driver.archive()
            first = self._archives(driver)[0]
            for hours in (-5.5, -5.0, -3.9):
                driver.clock.ahead_s = noon_s + hours * HOUR_S
                driver.application.maintenance.cleaning(driver.reported.append).run()
            left = self._archives(driver)
            assert len(left) == 1 and first not in left, left

    @staticmethod
    def _archives(driver: Driver) -> list[str]:
        return [
            info.key for info in driver.application.objects.list(f"archive/{driver.topic_id('aged')}/data/")
        ]

    def _round(self, number: int) -> None:
        if number == 1:
            (self.deployment.root / "shop.binpb").write_bytes(_wider())
        with Driver(self.deployment) as driver:
            driver.clock.ahead_s = _until_noon_s(driver) + 60.0 * number
            self._send(driver, number)
            if number == 2:
                failpoints.arm("table.swap.before=error")  # the first table to be committed is that of clicks
            driver.archive()
            failpoints.arm("")
            if number == 0:
                for file in (self.deployment.data / "intake").rglob("*.parquet"):
                    file.unlink()  # as the vacuum does, much later

    def _send(self, driver: Driver, number: int) -> None:
        with driver.application.intake.writer() as writer:
            pending = [
                writer.send(
                    topic,
                    Record(f"k{row}".encode() if row % 3 else None, _value(number, row), (("trace", b"x"),)),
                    partition,
                )
                for topic, partitions in (("orders", len(SPOILINGS)), ("clicks", 1), ("files", 2))
                for partition in range(partitions)
                for row in range(ROWS)
            ]
            writer.flush()
        assert all(one.result(WAIT_S) for one in pending)
        if number == 0:
            producer = Transactional(driver.application, driver.clock, "aborting")
            producer.send({("orders", partition): [b"aborted"] * 3 for partition in range(len(SPOILINGS))})
            producer.abort()

    def spoil(self) -> None:
        """Every partition in its own way, and one snapshot for the changes of the table."""
        with catalog_table(self.deployment, "shop.orders") as table:
            hands = Hands(table)
            for number, one in enumerate(SPOILINGS):
                one.spoil(Place(number, hands, _files(table, hands, number)))
            hands.commit()


def _value(number: int, row: int) -> bytes | None:
    return None if row == 7 else order(number * 100 + row)


def _files(table: Table, hands: Hands, partition: int) -> list[DataFile]:
    mine = [file for file in hands.files() if bound(table, file, "kafka.partition") == partition]
    return sorted(mine, key=lambda file: bound(table, file, "kafka.offset"))


def _until_noon_s(driver: Driver) -> float:
    """So that no round crosses midnight."""
    day_s = 86_400
    return day_s + day_s / 2 - (driver.clock.now_us() / 1e6 % day_s)


def _wider() -> bytes:
    """The same messages with one more field."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    kind = descriptor_pb2.FieldDescriptorProto
    files.file[0].message_type[1].field.add(
        name="note", number=9, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL
    )
    return files.SerializeToString()
