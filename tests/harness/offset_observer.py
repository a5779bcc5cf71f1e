"""An observer of consumer groups: asks each daemon for the committed offsets, by a hand-written OffsetFetch.

Only the coordinator of a group may answer. One that was replaced must not answer with what it remembers.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.harness.kafka_reader import SOCKET_MS
from tests.harness.kafka_sender import CLIENT
from tests.harness.ledger_file import LedgerFile

OFFSET_FETCH, VERSION = 9, 1
TIMEOUT_S = 2.0
"""A daemon that is paused does not answer."""
ANSWER_BYTES_MAX = 2**20
PATIENCE_S = 60.0
"""At the end, how long no committed offset may move before the observer gives up."""
ALTOGETHER_S = 300.0
"""At the end, for every group to come to the end of every partition: a group may be far behind after a long run."""
PAUSE_S = 0.2

Offsets = dict[tuple[str, int], int]


class OffsetObserver:
    """Observes every group."""

    def __init__(
        self,
        ledger: LedgerFile,
        servers: str,
        daemons: Sequence[tuple[str, int]],
        groups: Sequence[str],
        topics: Mapping[str, int],
    ) -> None:
        self._ledger = ledger
        self._servers = servers
        self._daemons = daemons
        self._groups = groups
        self._topics = topics

    def burst(self) -> None:
        """One question to each daemon about each group."""
        for daemon in range(len(self._daemons)):
            for group in self._groups:
                self._observe(daemon, group)

    def close(self) -> None:
        """Observe until every group has committed the end of each partition."""
        ends = self._ends()
        moved_s = began_s = time.monotonic()
        behind = list(self._groups)
        last: dict[str, list[Offsets]] = {}
        while behind and time.monotonic() < min(moved_s + PATIENCE_S, began_s + ALTOGETHER_S):
            time.sleep(PAUSE_S)
            found = {
                group: [self._observe(daemon, group) for daemon in range(len(self._daemons))]
                for group in behind
            }
            if found != last:
                moved_s, last = time.monotonic(), found
            behind = [
                group
                for group in behind
                if not any(
                    all(offsets.get(place, -1) >= end for place, end in ends.items())
                    for offsets in found[group]
                )
            ]
        lines = [[*place, end] for place, end in ends.items()]
        for group in self._groups:
            self._ledger.write("group-ended", group=group, ends=lines, behind=group in behind)

    def _ends(self) -> Offsets:
        options = {"bootstrap.servers": self._servers, "group.id": "unused", **CLIENT}
        options["socket.timeout.ms"] = SOCKET_MS
        consumer = Consumer(options)
        found: Offsets = {}
        for topic, count in self._topics.items():
            for partition in range(count):
                with contextlib.suppress(KafkaException):
                    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20.0)
                    found[topic, partition] = end
        consumer.close()
        return found

    def _observe(self, daemon: int, group: str) -> Offsets:
        began_s = self._ledger.elapsed_s()
        try:
            offsets = fetch_offsets(self._daemons[daemon], group, self._topics)
        except (OSError, struct.error, ValueError):
            return {}  # It is dead, or paused.
        if offsets:
            lines = [[topic, partition, offset] for (topic, partition), offset in offsets.items()]
            self._ledger.write("group-offsets", group=group, daemon=daemon, began=began_s, offsets=lines)
        return offsets


def fetch_offsets(address: tuple[str, int], group: str, topics: Mapping[str, int]) -> Offsets:
    """The committed offsets, -1 where there is none; empty if this daemon does not coordinate the group.

    Raises `OSError` without an answer, `struct.error` or `ValueError` on one that is not whole."""
    body = _text(group) + struct.pack(">i", len(topics))
    for topic, count in topics.items():
        body += _text(topic) + struct.pack(f">i{count}i", count, *range(count))
    request = struct.pack(">hhi", OFFSET_FETCH, VERSION, 1) + _text("observer") + body
    with socket.create_connection((address[0], address[1]), timeout=TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        return dict(_offsets(_exactly(connection, size)[4:]))


def _offsets(body: bytes) -> Iterator[tuple[tuple[str, int], int]]:
    at = 4
    (topics,) = struct.unpack_from(">i", body)
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", body, at)
        topic = body[at + 2 : at + 2 + length].decode()
        (partitions,) = struct.unpack_from(">i", body, at + 2 + length)
        at += 6 + length
        for _ in range(partitions):
            partition, offset, metadata = struct.unpack_from(">iqh", body, at)
            at += 14 + max(0, metadata)
            (error,) = struct.unpack_from(">h", body, at)
            at += 2
            if error == 0:
                yield (topic, partition), offset


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionError("closed before the answer was whole")
        found += part
    return found
