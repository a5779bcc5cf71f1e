"""Fetch messages as kio has them, and which batches of a response a consumer of committed records gets."""

from __future__ import annotations

import datetime
import io
import random
import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import response as kio_response
from kio.schema.fetch.v11.request import FetchRequest
from kio.serial import entity_reader, entity_writer

from intake.batches.decoding import decode, read_header
from intake.sources.kafka.fetched import (
    BadResponse,
    Committed,
    Wish,
    committed,
    fetch_request,
    read_response,
    remove_producer,
)
from tests.support.kafka.record_batches import (
    RawRecord,
    batch_bytes,
    blob,
    records_bytes,
    varint,
    with_length,
)

TRANSACTIONAL, CONTROL = 0x10, 0x20


def batch(
    base: int, count: int = 1, producer: int = -1, flags: int = 0, epoch: int = 7, **more: Any
) -> bytes:
    data = batch_bytes(
        records_bytes([RawRecord(value=b"%d" % (base + number)) for number in range(count)]),
        producer=(producer, 0, 0),
        flags=flags,
        **more,
    )
    return placed(data, base, epoch)


def placed(data: bytes, base: int, epoch: int = 7) -> bytes:
    return struct.pack(">q", base) + data[8:12] + struct.pack(">i", epoch) + data[16:]


def marker(base: int, producer: int, kind: int) -> bytes:
    body = b"\x00" + varint(0) + varint(0) + blob(struct.pack(">hh", 0, kind)) + blob(b"\x00" * 6) + varint(0)
    data = batch_bytes([with_length(body)], producer=(producer, 0, -1), flags=TRANSACTIONAL | CONTROL)
    return placed(data, base)


def empty(base: int, last_delta: int) -> bytes:
    """What compaction leaves of a batch, so that its producer is not forgotten."""
    return placed(batch_bytes(b"", count=0, last_offset_delta=last_delta, producer=(5, 0, 0)), base)


def bases(found: Committed) -> list[int]:
    return [header.base_offset for header, _ in found.batches]


def read(*batches: bytes, offset: int = 0, aborted: tuple[tuple[int, int], ...] = ()) -> Committed:
    return committed(memoryview(b"".join(batches)), offset, aborted)


def test_a_request_is_what_kio_reads() -> None:
    wishes = [Wish(("a", 0), 3, 10), Wish(("b", 7), -1, 2**40), Wish(("a", 5), 0, 0)]
    found, size = entity_reader(FetchRequest)(body := fetch_request(wishes, 500, 1000, 100), 0)
    assert size == len(body)
    assert {
        (topic.topic, one.partition, one.current_leader_epoch, one.fetch_offset, one.partition_max_bytes)
        for topic in found.topics
        for one in topic.partitions
    } == {("a", 0, 3, 10, 100), ("b", 7, -1, 2**40, 100), ("a", 5, 0, 0, 100)}
    assert (found.isolation_level, found.max_bytes, found.session_epoch) == (1, 1000, -1)


def asked_in_order(body: bytes) -> list[tuple[str, int]]:
    found, _ = entity_reader(FetchRequest)(body, 0)
    return [(str(topic.topic), int(one.partition)) for topic in found.topics for one in topic.partitions]


def test_a_request_has_the_order_of_its_partitions() -> None:
    places = [("a", 0), ("a", 3), ("b", 7), ("a", 1), ("b", 0)]
    assert asked_in_order(fetch_request([Wish(one, 3, 0) for one in places], 500, 1000, 100)) == places


def test_each_partition_is_served_in_a_bounded_number_of_rounds() -> None:
    """By the rule of a broker: the first partition with data gets a batch, the others get what is left."""
    sizes = {("a", 0): 0, ("a", 1): 100, ("b", 0): 300, ("b", 1): 0, ("c", 0): 90, ("a", 2): 150}
    busy = {place for place, size in sizes.items() if size}
    order, waits = list(sizes), dict.fromkeys(busy, 0)
    for _ in range(100):
        left = 100
        served: list[tuple[str, int]] = []
        for place in asked_in_order(fetch_request([Wish(one, 3, 0) for one in order], 500, 100, 100)):
            if sizes[place] and (not served or sizes[place] <= left):
                left -= sizes[place]
                served.append(place)
        order = [one for one in order if one not in served] + served
        for place in busy:
            waits[place] = 0 if place in served else waits[place] + 1
            assert waits[place] < len(busy), (place, order)


def response_bytes() -> bytes:
    """With every shape of a partition."""
    data: Any = kio_response
    partitions = [
        data.PartitionData(
            partition_index=number,
            error_code=ErrorCode.none if number else ErrorCode.offset_out_of_range,
            high_watermark=100 + number,
            last_stable_offset=90 + number,
            log_start_offset=0,
            aborted_transactions=None
            if number == 0
            else tuple(
                data.AbortedTransaction(producer_id=one, first_offset=10 * one) for one in range(number)
            ),
            preferred_read_replica=-1,
            records=None if number == 1 else b"r" * number,
        )
        for number in range(4)
    ]
    topics = (
        data.FetchableTopicResponse(topic="a", partitions=tuple(partitions[:1])),
        data.FetchableTopicResponse(topic="b", partitions=tuple(partitions[1:])),
    )
    out = io.BytesIO()
    entity_writer(data.FetchResponse)(
        out,
        data.FetchResponse(
            throttle_time=datetime.timedelta(), error_code=ErrorCode.none, session_id=0, responses=topics
        ),
    )
    return out.getvalue()


def test_a_response_is_what_kio_writes() -> None:
    error, found = read_response(memoryview(response_bytes()))
    assert error == 0
    assert [(one.place, one.error, one.high, one.last_stable) for one in found] == [
        (("a", 0), 1, 100, 90),
        (("b", 1), 0, 101, 91),
        (("b", 2), 0, 102, 92),
        (("b", 3), 0, 103, 93),
    ]
    assert [one.aborted for one in found] == [[], [(0, 0)], [(0, 0), (10, 1)], [(0, 0), (10, 1), (20, 2)]]
    assert [bytes(one.records) for one in found] == [b"", b"", b"rr", b"rrr"]


def test_a_response_that_is_cut_off_is_refused() -> None:
    data = response_bytes()
    for size in range(len(data)):
        with pytest.raises(BadResponse):
            read_response(memoryview(data)[:size])


def test_batches_from_an_offset_on() -> None:
    batches = [batch(0, 3), batch(3, 2), batch(5, 4)]
    assert bases(read(*batches)) == [0, 3, 5]
    found = read(*batches, offset=4)
    assert bases(found) == [3, 5], "the batch with the offset is given whole"
    assert (found.end, found.leader_epoch, found.damage) == (9, 7, None)
    assert bases(read(*batches, offset=5)) == [5]


def test_a_last_batch_that_is_cut_off_waits_for_the_next_response() -> None:
    whole = batch(0, 3) + batch(3, 2)
    for size in range(len(batch(0, 3)), len(whole)):
        found = committed(memoryview(whole)[:size], 0, [])
        assert (bases(found), found.end, found.damage) == ([0], 3, None)


def test_aborted_transactions_are_left_out_until_their_marker() -> None:
    t = TRANSACTIONAL
    log = [
        batch(0, 2, 1, t),  # aborted
        batch(2, 1, 2, t),  # committed
        batch(3, 1),
        batch(4, 1, 1),  # the same producer, outside of a transaction
        marker(5, 1, 0),
        batch(6, 1, 1, t),  # its next transaction is committed
        marker(7, 2, 1),
        marker(8, 1, 1),
        batch(9, 1, 1, t),  # and the one after that is aborted again
        marker(10, 1, 0),
    ]
    found = read(*log, aborted=((9, 1), (0, 1)))
    assert (bases(found), found.end) == ([2, 3, 4, 6], 11)
    assert bases(read(*log[2:], offset=3, aborted=((0, 1), (9, 1)))) == [3, 4, 6], (
        "a transaction that began before"
    )


def test_the_end_of_a_committed_transaction_does_not_end_an_aborted_one() -> None:
    log = [batch(0, 1, 1, TRANSACTIONAL), marker(1, 1, 1), batch(2, 1, 1, TRANSACTIONAL), marker(3, 1, 0)]
    assert bases(read(*log, aborted=((0, 1),))) == []


def test_what_compaction_has_emptied_is_a_gap() -> None:
    found = read(batch(0, 2), empty(2, 5), batch(8, 1))
    assert (bases(found), found.end) == ([0, 8], 9)
    assert read(empty(0, 3)).end == 4


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_no_flipped_bit_is_read(codec: str) -> None:
    """Except in the place of a batch, which no checksum covers."""
    first, second = batch(0, 2), batch(2, 3, 1, TRANSACTIONAL, codec=codec)
    for bit in range(8 * 12, 8 * len(second)):
        if 8 * 12 <= bit < 8 * 16:
            continue  # the leader epoch
        data = bytearray(second)
        data[bit // 8] ^= 1 << bit % 8
        found = read(first, bytes(data), batch(5, 1))
        assert bases(found) == [0] and found.end == 2, bit
        assert found.damage is not None or found.is_old
    damaged = bytearray(empty(2, 5))
    damaged[30] ^= 1
    assert read(first, bytes(damaged)).damage is not None


def test_old_formats_are_named() -> None:
    old = struct.pack(">qiIBb", 2, 14, 0, 1, 0) + bytes(8)
    found = read(batch(0, 2), old)
    assert (bases(found), found.end, found.is_old) == ([0], 2, True)


def test_random_bytes_are_never_read() -> None:
    chance = random.Random(5)
    for _ in range(500):
        found = read(batch(0, 1), chance.randbytes(chance.randrange(200)))
        assert bases(found) == [0] and found.end == 1


def test_a_producer_of_the_cluster_means_nothing_here() -> None:
    sent = batch(5, 3, 11, TRANSACTIONAL, codec="lz4")
    data = memoryview(bytearray(sent))
    remove_producer(read_header(data), data)
    header = read_header(data)  # with a right checksum
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.transactional) == (
        -1,
        -1,
        -1,
        False,
    )
    before, after = (decode([(read_header(one), one)], uncompressed_max=10**6)[0] for one in (sent, data))
    assert before == after
    # The bytes need not be writable where nothing is removed.
    untouched = memoryview(batch(5, 3))
    remove_producer(read_header(untouched), untouched)
    assert untouched == batch(5, 3)
