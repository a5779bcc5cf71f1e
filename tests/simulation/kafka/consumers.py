"""Kafka clients that fetch, from daemon to daemon, forwards and back again, and what each must see.

Everything that an answer says is kept; `judge_consumers` compares it with what the log holds in the end. What
one connection says of the end of a partition is checked at once, because it may never go back.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode

from archiver.runtime.ids import TopicPartition
from tests.simulation.book import Book
from tests.simulation.ground import Ground
from tests.simulation.kafka.kafka_clients import Links
from tests.simulation.kafka.requests import KEY, Place, fetch, list_offsets
from tests.simulation.kafka.wire import Brokers, Connection, Disconnected, Reply
from tests.simulation.schedule import Process, Violation

_PATIENCE_US = 4_000_000
_EARLIEST, _LATEST = -2, -1
_EMPTY_MAX = 20


@dataclass(frozen=True)
class Read:
    """One answer for one partition: the offsets [start, end) were read, and these had records."""

    tp: TopicPartition
    start: int
    end: int
    records: Mapping[int, bytes]
    stable: int
    """The last stable offset that the answer named."""


class Judged(Protocol):
    """What one consumer has seen."""

    name: str
    committed: bool
    """It reads committed records only."""
    reads: list[Read]
    batches: set[tuple[TopicPartition, int, int]]
    """Every batch that was served: partition, first and last offset."""
    ends: int
    """How often its end was compared with that of the log."""


class Consumer:
    """Follows every partition until all senders have finished and the end is reached."""

    def __init__(
        self,
        name: str,
        ground: Ground,
        choices: random.Random,
        brokers: Brokers,
        senders_finished: Callable[[], bool],
        *,
        committed: bool,
    ) -> None:
        self.name = name
        self.committed = committed
        self._ground = ground
        self._random = choices
        self._brokers = brokers
        self._senders_finished = senders_finished
        self.reads: list[Read] = []
        self.batches: set[tuple[TopicPartition, int, int]] = set()
        self.ends = 0

    def live(self, process: Process) -> None:
        following = _Following(self, process, self._random, self._brokers)
        while True:
            process.require_current()
            # A request that is refused can hide the end from a daemon, so it is judged without faults only.
            expected = self._true_ends() if process.schedule.calm else {}
            finished = self._senders_finished()
            try:
                at_end = following.go_on()
            except Disconnected:
                process.sleep(self._random.randrange(1, 500_000))
                continue
            if not at_end:
                continue
            self.ends += bool(expected)
            ends = following.ends()
            short = {tp: end for tp, end in expected.items() if ends.get(tp, 0) < end}
            if short:
                raise Violation(
                    "a consumer reaches the end", f"{process.name} is at {ends}, short of {short}"
                )
            if finished:
                return

    def _true_ends(self) -> dict[TopicPartition, int]:
        """What the log holds now; for the judgement alone."""
        fold = self._ground.fold
        of = fold.stable_offset if self.committed else fold.next_offset
        return {tp: of(tp) for tp in self._ground.partitions()}


class _Following:
    """One consumer process."""

    def __init__(self, actor: Consumer, process: Process, choices: random.Random, brokers: Brokers) -> None:
        self._actor = actor
        self._process = process
        self._random = choices
        self._links = Links(process, brokers, choices)
        self._positions: dict[Place, int] = {}
        self._places: dict[Place, TopicPartition] = {}
        self._known: dict[tuple[Connection, Place], tuple[int, int]] = {}
        """High watermark and last stable offset, as last answered on a connection."""
        self._empty: dict[Place, int] = {}
        """Answers in a row without a batch, although the end was not reached."""

    def ends(self) -> dict[TopicPartition, int]:
        """The position in every partition."""
        return {self._places[place]: offset for place, offset in self._positions.items()}

    def go_on(self) -> bool:
        """One request and its answer; whether it says that every partition is read to its end. Raises
        `Disconnected`.
        """
        connection = self._links.leader()
        self._places = self._links.places(connection)
        new = [place for place in self._places if place not in self._positions]
        if new:
            self._begin(connection, new)
            return False
        if self._random.random() < 0.1:
            # As after a seek, also into the middle of a batch.
            place = self._random.choice(sorted(self._positions))
            self._positions[place] = self._random.randrange(self._positions[place] + 1)
        end = self._end_of(connection)
        if end is None:
            return False
        wait_ms = self._random.choice((0, 100, 500))
        bytes_max = self._random.choice((1, 200, 1 << 20))
        asked = dict(self._positions)
        reply = fetch(connection, asked, wait_ms, bytes_max, committed=self._actor.committed)
        body = self._answer(reply)
        if body is None:
            return False
        for topic in body["responses"]:
            for part in topic["partitions"]:
                self._take(connection, (topic["topic"], part["partition_index"]), asked, part)
        return all(self._positions[place] >= end.get(place, 1 << 62) for place in self._places)

    def _answer(self, reply: Reply) -> Mapping[str, Any] | None:
        """The answer, None if none comes."""
        until_us = self._process.schedule.now_us + _PATIENCE_US
        while not reply.arrived:
            if reply.connection.closed or self._process.schedule.now_us >= until_us:
                self._links.leave(reply.connection)
                return None
            self._process.wait(until_us - self._process.schedule.now_us)
        return reply.body

    def _begin(self, connection: Connection, places: Sequence[Place]) -> None:
        reply = list_offsets(connection, places, _EARLIEST, committed=self._actor.committed)
        for place, offset in self._offsets(reply).items():
            if offset != 0:
                raise Violation("nothing is removed here", f"{place} begins at {offset}")
            self._positions[place] = offset

    def _end_of(self, connection: Connection) -> dict[Place, int] | None:
        """The end of every partition by ListOffsets, None if the answer is missing."""
        reply = list_offsets(connection, sorted(self._places), _LATEST, committed=self._actor.committed)
        ends = self._offsets(reply)
        for place, offset in ends.items():
            known = self._known.get((connection, place))
            if known is not None and offset < known[self._actor.committed]:
                raise Violation(
                    "an end never goes back on a connection",
                    f"{self._process.name} of {place}: ListOffsets says {offset} after {known}",
                )
        return ends or None

    def _offsets(self, reply: Reply) -> dict[Place, int]:
        body = self._answer(reply)
        found: dict[Place, int] = {}
        for topic in () if body is None else body["topics"]:
            for part in topic["partitions"]:
                if part["error_code"] == 0:
                    found[topic["name"], part["partition_index"]] = part["offset"]
        return found

    def _take(
        self, connection: Connection, place: Place, asked: Mapping[Place, int], part: Mapping[str, Any]
    ) -> None:
        code, start = ErrorCode(part["error_code"]), asked[place]
        name, tp = self._process.name, self._places[place]
        if code is ErrorCode.kafka_storage_error:
            return
        if code is not ErrorCode.none:
            raise Violation("a position is served", f"{name} at {start} of {place} gets {code.name}")
        high, stable = part["high_watermark"], part["last_stable_offset"]
        if stable >= 0:
            self._check_bounds(connection, place, high, stable)
        records: dict[int, bytes] = {}
        at, data = start, MemoryRecords(b"".join(part["records"]))
        while data.has_next():
            batch = data.next_batch()
            if not batch.validate_crc():
                raise Violation("bytes are equal", f"{name}: a batch of {place} has a wrong checksum")
            base, end = batch.base_offset, batch.next_offset
            if end <= at or (base < at and at != start):
                raise Violation(
                    "batches follow each other", f"{name} at {at} of {place} gets [{base}, {end})"
                )
            if not batch.is_control_batch:
                self._actor.batches.add((tp, base, end - 1))
                rows = list(batch)
                self._check_bytes(place, rows)
                records |= {one.offset: one.value for one in rows if one.offset >= start}
            at = end
        limit = stable if self._actor.committed else high
        # An answer can be empty because the records came after they were looked for, but not for ever.
        self._empty[place] = self._empty.get(place, 0) + 1 if at == start < limit else 0
        if self._empty[place] > _EMPTY_MAX:
            raise Violation(
                "a fetch makes progress", f"{name} at {start} of {place} gets nothing, end {limit}"
            )
        if at > start:
            if at > limit:
                raise Violation("nothing beyond the end is served", f"{name}: {place} to {at}, end {limit}")
            self._actor.reads.append(Read(tp, start, at, records, stable))
            self._positions[place] = at

    def _check_bytes(self, place: Place, rows: Sequence[Any]) -> None:
        """Keys and headers are as they were sent; values are compared in the end."""
        for one in rows:
            # Writers that are no Kafka clients send neither.
            expected = [] if one.key is None else [("n", one.value.rpartition(b" ")[2])]
            if one.key not in (None, KEY) or list(one.headers) != expected:
                raise Violation(
                    "bytes are equal",
                    f"{self._process.name}: {one.value!r} of {place} has {one.key!r} and {one.headers}",
                )

    def _check_bounds(self, connection: Connection, place: Place, high: int, stable: int) -> None:
        before = self._known.get((connection, place), (0, 0))
        if high < before[0] or stable < before[1] or stable > high:
            raise Violation(
                "an end never goes back on a connection",
                f"{self._process.name} of {place}: high watermark {high}, stable {stable}, after {before}",
            )
        self._known[connection, place] = high, stable


def judge_consumers(
    consumers: Sequence[Judged],
    held: Mapping[TopicPartition, Mapping[int, bytes]],
    stored: Sequence[tuple[TopicPartition, int, int]],
    book: Book,
) -> dict[str, int]:
    """Compare what consumers saw with the records that the log holds in the end. Raises `Violation`."""
    counts = {"kafka reads": 0, "kafka records read": 0, "kafka uncommitted records": 0, "kafka ends": 0}
    for consumer in consumers:
        for read in consumer.reads:
            counts["kafka reads"] += 1
            counts["kafka records read"] += len(read.records)
            counts["kafka uncommitted records"] += _judge_read(consumer, read, held[read.tp], book)
        _judge_batches(consumer, stored)
        counts["kafka ends"] += consumer.ends
    return counts


def _judge_read(consumer: Judged, read: Read, held: Mapping[int, bytes], book: Book) -> int:
    """One answer; the number of its records that were not committed."""
    where = f"{consumer.name}: {read.tp} [{read.start}, {read.end})"
    missed = [at for at in range(read.start, read.end) if at in held and at not in read.records]
    if missed:
        raise Violation("a consumer skips nothing", f"{where} lacks {missed}")
    aborted = 0
    for offset, value in read.records.items():
        if held.get(offset) == value:
            continue
        sent = book.sent.get(value)
        of = None if sent is None else sent.transaction
        if offset in held or of is None or of.fate == "committed":
            raise Violation(
                "what was read stays", f"{where} has {value!r} at {offset}, the log {held.get(offset)!r}"
            )
        if consumer.committed or offset < read.stable:
            raise Violation("what is not committed is not read", f"{where} has {value!r} at {offset}")
        aborted += 1
    return aborted


def _judge_batches(consumer: Judged, stored: Sequence[tuple[TopicPartition, int, int]]) -> None:
    """A producer's batch is served as a whole."""
    cuts: dict[TopicPartition, set[int]] = defaultdict(set)
    """Offsets at which no served batch may begin."""
    for tp, base, rows in stored:
        cuts[tp].update(range(base + 1, base + rows))
    for tp, first, last in consumer.batches:
        if first in cuts[tp] or last + 1 in cuts[tp]:
            raise Violation(
                "a batch is served whole", f"{consumer.name}: {tp} [{first}, {last}] cuts a producer's batch"
            )
