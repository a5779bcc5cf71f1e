"""What a fetcher does when leaders move, connections break and logs are cut off: each record once, in order."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.config.kafka import KafkaSourceSettings
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from intake.sources.kafka.client_log import ClientLog
from intake.sources.kafka.fetched import Result
from intake.sources.kafka.fetcher import Fetcher
from intake.sources.kafka.upstream import Stopped
from intake.sources.kafka.wire import NotSpoken, access_of
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes
from tests.support.kafka.scripted_brokers import TOPIC, ScriptedBroker, ScriptedCluster

PATIENCE_S = 120.0
PLACE = (TOPIC, 0)


class Reading:
    """A fetcher of the scripted cluster, and what it has delivered."""

    def __init__(self, cluster: ScriptedCluster, queue_bytes_max: int = 2**25, before: str = "") -> None:
        host, port = cluster.brokers[0].address
        settings = KafkaSourceSettings(
            brokers=f"{before}{host}:{port}", topics=TOPIC, request_timeout=2, queue_bytes_max=queue_bytes_max
        )
        access = access_of(settings)
        assert access is not None
        clock = SystemClock()
        self.fetcher = Fetcher(settings, access, clock, SystemIds(), ClientLog("test", clock))
        self.offsets: list[int] = []
        self.of_batches: list[int] = []
        """Those that can be stored as they came."""
        self.stopped: list[Stopped] = []
        self.ends: list[int] = []

    def until(self, holds: Callable[[], object]) -> None:
        """Poll until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, (self.offsets, self.stopped)
            polled = self.fetcher.poll(5, 0.05)
            for batch in polled.batches:
                first = batch.header.base_offset
                self.of_batches += range(first, first + batch.header.count)
                self.offsets += range(first, first + batch.header.count)
            for rows in polled.rows:
                self.offsets += rows.offsets.tolist()
            self.offsets += polled.offsets
            self.ends += polled.ends.values()
            self.stopped += polled.stopped


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    found = ScriptedCluster()
    with ExitStack() as brokers:
        for _ in range(2):
            brokers.enter_context(ScriptedBroker(found))
        yield found


@pytest.fixture
def reading(cluster: ScriptedCluster) -> Iterator[Reading]:
    found = Reading(cluster)
    yield found
    found.fetcher.close()


def fill(cluster: ScriptedCluster, batches: int) -> None:
    for number in range(batches):
        cluster.append(batch_bytes(records_bytes([RawRecord(value=b"%d" % number)] * (1 + number % 4))))


def test_records_are_read_to_the_end(cluster: ScriptedCluster, reading: Reading) -> None:
    fill(cluster, 20)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end)) and reading.ends == [cluster.end]
    assert reading.fetcher.known_ends([PLACE]) == {PLACE: cluster.end}
    fill(cluster, 3)
    reading.until(lambda: len(reading.ends) > 1)
    assert reading.offsets == list(range(cluster.end))


@pytest.mark.parametrize(("offset", "keeps_response"), [(0, True), (1, False)])
def test_a_small_batch_does_not_keep_a_large_response(
    reading: Reading, offset: int, keeps_response: bool
) -> None:
    large = batch_bytes(records_bytes([RawRecord(value=bytes(50_000))]))
    small = struct.pack(">q", 1) + batch_bytes(records_bytes([RawRecord(value=b"v")]))[8:]
    # A broker may send batches before the offset that is asked for.
    response = memoryview(bytearray(large + small))
    fetcher = reading.fetcher
    fetcher.read({PLACE: (offset, None)})
    part = fetcher._parts[PLACE]
    fetcher._take_result(part, Result(PLACE, 0, 2, 2, [], response), 0.0)
    header, data = part.waiting[-1]
    assert (header.base_offset, bytes(data)) == (1, small)
    assert (data.obj is response.obj) == keeps_response
    assert part.bytes_waiting == len(small) + (len(large) if keeps_response else 0)


def test_reading_begins_within_a_batch(cluster: ScriptedCluster, reading: Reading) -> None:
    cluster.append(batch_bytes(records_bytes([RawRecord(value=b"v")] * 10)))
    fill(cluster, 3)
    reading.fetcher.read({PLACE: (7, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(7, cluster.end))


def test_a_leader_that_moves_is_followed(cluster: ScriptedCluster, reading: Reading) -> None:
    fill(cluster, 30)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: len(reading.offsets) > 10)
    cluster.leader, cluster.epoch = 1, 4
    fill(cluster, 30)
    reading.until(lambda: len(reading.offsets) > 100)
    cluster.epoch = 5  # the same one is elected again
    fill(cluster, 30)
    reading.until(lambda: cluster.end in reading.ends)
    assert reading.offsets == list(range(cluster.end))
    assert reading.stopped == []


def test_a_new_leader_without_what_was_read_is_a_truncation(
    cluster: ScriptedCluster, reading: Reading
) -> None:
    fill(cluster, 10)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    before = list(reading.offsets)
    # It has other records from there on.
    cluster.leader, cluster.epoch, cluster.epoch_end = 1, 4, 12
    fill(cluster, 10)
    reading.until(lambda: reading.stopped)
    (stopped,) = reading.stopped
    assert (stopped.place, stopped.trouble) == (PLACE, "truncated")
    assert "12" in stopped.why
    assert reading.offsets == before


def test_a_position_with_an_epoch_is_compared_before_anything_is_read(
    cluster: ScriptedCluster, reading: Reading
) -> None:
    fill(cluster, 10)
    cluster.epoch_end = 5
    reading.fetcher.read({PLACE: (5, 2)})
    reading.until(lambda: reading.offsets)
    reading.fetcher.read({PLACE: (6, 2)})
    reading.until(lambda: reading.stopped)
    assert reading.stopped[0].trouble == "truncated"
    assert 6 not in cluster.fetched


@pytest.mark.parametrize("cut_at", [2, 4, 50, 90, 200])
def test_a_connection_that_breaks_within_a_response_loses_nothing(
    cluster: ScriptedCluster, reading: Reading, cut_at: int
) -> None:
    fill(cluster, 20)
    cluster.cut_at = cut_at
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: len(reading.offsets) > 5)
    cluster.cut_at = cut_at
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end))


@pytest.mark.parametrize("size", [2**31 - 1, 100_000_001, 0, -5])
def test_a_response_of_an_impossible_size_is_not_read(
    cluster: ScriptedCluster, reading: Reading, size: int
) -> None:
    fill(cluster, 10)
    cluster.size = size
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end))
    assert cluster.size != size, "it was sent"


def test_brokers_that_close_all_connections_are_connected_again(
    cluster: ScriptedCluster, reading: Reading
) -> None:
    fill(cluster, 10)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    for broker in cluster.brokers:
        broker.disconnect()
    fill(cluster, 10)
    reading.until(lambda: cluster.end in reading.ends)
    assert reading.offsets == list(range(cluster.end))


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (ErrorCode.offset_out_of_range, "out_of_range"),
        (ErrorCode.topic_authorization_failed, "other"),
        (ErrorCode.corrupt_message, "damaged"),
    ],
)
def test_errors_of_a_partition_stop_it(
    cluster: ScriptedCluster, reading: Reading, error: ErrorCode, trouble: str
) -> None:
    fill(cluster, 3)
    cluster.error = error
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.stopped)
    assert [one.trouble for one in reading.stopped] == [trouble] and not reading.offsets
    cluster.error = ErrorCode.none
    assert not reading.fetcher.poll(5, 0.2).batches, "until it is read again"
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end))


def test_a_storage_error_is_waited_for(cluster: ScriptedCluster, reading: Reading) -> None:
    fill(cluster, 3)
    cluster.error = ErrorCode.kafka_storage_error
    reading.fetcher.read({PLACE: (0, None)})
    for _ in range(5):
        assert not reading.fetcher.poll(5, 0.05).stopped
    cluster.error = ErrorCode.none
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end))


def test_what_is_before_damage_is_delivered_first(cluster: ScriptedCluster, reading: Reading) -> None:
    fill(cluster, 4)
    good = cluster.end
    cluster.append(batch_bytes(records_bytes([RawRecord(value=b"v")])))
    last, data = cluster.batches[-1]
    cluster.batches[-1] = (last, data[:-1] + b"\xff")
    fill(cluster, 4)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.stopped)
    assert reading.stopped[0].trouble == "damaged"
    assert reading.offsets == list(range(good))


def test_records_of_old_formats_are_for_another_reader(cluster: ScriptedCluster, reading: Reading) -> None:
    fill(cluster, 4)
    good = cluster.end
    cluster.batches.append((good, struct.pack(">qiIBb", good, 14, 0, 1, 0) + bytes(8)))
    reading.fetcher.read({PLACE: (0, None)})
    with pytest.raises(NotSpoken, match=r"0\.11"):
        reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(good))
    assert reading.fetcher.positions() == {PLACE: (good, 3)}


def test_nothing_more_is_requested_than_may_wait(cluster: ScriptedCluster) -> None:
    for _ in range(60):
        cluster.append(batch_bytes(records_bytes([RawRecord(value=bytes(300_000))])))
    reading = Reading(cluster, queue_bytes_max=2**20)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.offsets)
    # Each response has 900 KB, and a poll delivers half of that.
    for _ in range(20):
        reading.fetcher.poll(0, 0.01)
    assert len(cluster.fetched) <= 3
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(60))
    reading.fetcher.close()


def test_what_is_not_read_any_more_delivers_nothing(cluster: ScriptedCluster, reading: Reading) -> None:
    fill(cluster, 30)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: len(reading.offsets) > 3)
    reading.fetcher.stop_reading([PLACE])
    before = list(reading.offsets)
    for _ in range(5):
        assert not reading.fetcher.poll(5, 0.02).batches
    reading.fetcher.read({PLACE: (before[-1] + 1, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end))


def test_a_response_for_an_earlier_position_counts_for_nothing(
    cluster: ScriptedCluster, reading: Reading
) -> None:
    fill(cluster, 30)
    reading.fetcher.read({PLACE: (40, None)})
    while not cluster.fetched:
        assert not reading.fetcher.poll(5, 0.0).batches
        time.sleep(0.01)
    # Its response is on the way.
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(cluster.end))


@pytest.mark.parametrize("flags", [0, 0x08])
def test_a_batch_that_becomes_too_large_is_not_read(cluster: ScriptedCluster, flags: int) -> None:
    """It would take the memory of every reader."""
    reading = Reading(cluster, queue_bytes_max=2**20)
    large = records_bytes([RawRecord(value=bytes(2**20))] * 3)
    cluster.append(batch_bytes(records_bytes([RawRecord(value=b"v")])))
    cluster.append(batch_bytes(large, codec="zstd", flags=flags, max_timestamp=1_700_000_000_000))
    try:
        reading.fetcher.read({PLACE: (0, None)})
        reading.until(lambda: reading.stopped)
    finally:
        reading.fetcher.close()
    (stopped,) = reading.stopped
    assert stopped.trouble == "other" and "offset 1" in stopped.why and "queue_bytes_max" in stopped.why
    assert reading.offsets == [0]


def test_records_without_a_time_are_not_stored_as_they_came(
    cluster: ScriptedCluster, reading: Reading
) -> None:
    fill(cluster, 1)
    cluster.append(batch_bytes(records_bytes([RawRecord(value=b"v")] * 3), base_timestamp=-1))
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == [0, 1, 2, 3]
    assert reading.of_batches == [0]


def test_a_poll_reports_no_more_ends_than_the_entry_has_room_for(reading: Reading) -> None:
    """Each may begin a segment of its own."""
    places = [(TOPIC, partition) for partition in range(12)]
    reading.fetcher.read(dict.fromkeys(places, (0, None)))
    for part in reading.fetcher._parts.values():
        part.end = 7
    found: dict[tuple[str, int], int] = {}
    for most in (5, 5, 2):
        polled = reading.fetcher._deliver(5)
        assert len(polled.ends) == most
        assert polled.more or most == 2
        found |= polled.ends
    assert found == dict.fromkeys(places, 7)


def test_a_response_that_takes_longer_than_the_timeout_arrives(
    cluster: ScriptedCluster, reading: Reading
) -> None:
    for _ in range(3):
        cluster.append(batch_bytes(records_bytes([RawRecord(value=bytes(170_000))])))
    cluster.rate = 125_000
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(3))
    assert cluster.fetched.count(0) == 1, "nothing is requested again"


def test_less_is_requested_from_a_broker_that_is_too_slow(cluster: ScriptedCluster, reading: Reading) -> None:
    for _ in range(3):
        cluster.append(batch_bytes(records_bytes([RawRecord(value=bytes(40_000))])))
    # Too slow for all of them at once: 120 KB in 12 s.
    cluster.rate = 10_000
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: len(cluster.asked_bytes) > 3)
    asked = cluster.asked_bytes[:3]
    assert asked == sorted(asked, reverse=True) and len(set(asked)) == 3
    cluster.rate = None
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(3))


def test_a_time_without_polls_does_not_count(cluster: ScriptedCluster, reading: Reading) -> None:
    for _ in range(3):
        cluster.append(batch_bytes(records_bytes([RawRecord(value=bytes(4_000_000))])))
    reading.fetcher.read({PLACE: (0, None)})
    while not cluster.fetched:
        reading.fetcher.poll(5, 0.01)
    time.sleep(3)  # longer than the timeout of a request
    reading.until(lambda: reading.ends)
    assert reading.offsets == list(range(3))
    assert cluster.fetched.count(0) == 1


def test_a_bootstrap_broker_that_is_silent_does_not_hide_the_others(cluster: ScriptedCluster) -> None:
    fill(cluster, 3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reading = Reading(cluster, before=f"127.0.0.1:{silent.getsockname()[1]},")
        reading.fetcher.read({PLACE: (0, None)})
        reading.until(lambda: reading.ends)
        assert reading.offsets == list(range(cluster.end))
        reading.fetcher.close()


def test_a_name_that_is_never_resolved_is_given_up(
    cluster: ScriptedCluster, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 3)
    resolve, hangs, asked = socket.getaddrinfo, threading.Event(), []

    def hang_once(*given: Any, **more: Any) -> Any:
        asked.append(given)
        if len(asked) == 1:
            hangs.wait()
        return resolve(*given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hang_once)
    reading.fetcher.read({PLACE: (0, None)})
    reading.until(lambda: reading.ends)
    hangs.set()
    assert reading.offsets == list(range(cluster.end))
