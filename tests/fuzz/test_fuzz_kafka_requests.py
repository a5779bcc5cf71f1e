"""Fuzz target: requests of every API and version, altered, over real connections and straight to the parser.

Any bytes get an answer or a closed connection. The listener then still answers, its memory has not grown, no
thread of it has died, and the log has no traceback.
"""

from __future__ import annotations

import gc
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from archiver.kafka.protocol import VERSIONS, ApiKey, read_request
from intake.kafka_messages import Malformed
from tests.support.amount import DAY, WHOLE
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.random_requests import BATCHES, right_request
from tests.support.kafka.record_batches import with_checksum
from tests.support.kafka.wire import WireClient, request_bytes

pytestmark = pytest.mark.timeout(3600)

PARSED: Final = 1_000_000 if WHOLE else 12_000
"""Requests that are given to the parser."""
SENT: Final = 100_000 if WHOLE else 2_000
"""Requests that are sent to a listener."""
GROWTH_MAX: Final = 200 << 20
"""Bytes of memory. Allocators keep some; a request that stayed would make gigabytes of the whole run."""
CONNECTIONS: Final = 8
# An altered request may delete `orders`; none names `kept`.
TOPICS = [{"name": "orders", "partitions": 2}, {"name": "kept", "partitions": 2}]
LENGTHS = [struct.pack(">i", number) for number in (-1, -2, 0, 1 << 16, 2**31 - 1, -(2**31))]
PIECES = [*LENGTHS, b"\xff" * 5, b"\xff\xff\xff\xff\x0f", b"\x80" * 6, b"\x00", b"\xff\xff", b"\x7f\xff"]


def _altered(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        # The API and its version are rarely altered: such a request is refused at once.
        at = chance.randrange(0 if chance.random() < 0.02 else min(8, len(found)), len(found) + 1)
        match chance.randrange(5):
            case 0 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                piece = chance.choice(PIECES)
                found[at : at + len(piece)] = piece
            case 2:
                found[at:at] = chance.choice(PIECES)
            case 3:
                del found[at : at + chance.randrange(1, 20)]
            case _:
                del found[max(at, 1) :]
    if (at := data.find(BATCHES[0][4:17])) > 0 and chance.random() < 0.5:
        # Altered records below a right checksum.
        found[at - 4 :] = with_checksum(bytes(found[at - 4 :]))
    return bytes(found) or b"\x00"


def _requests(seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    places = [(api, version) for api, (low, high) in VERSIONS.items() for version in range(low, high + 1)]
    # Making a right request is slow, so several altered ones come from each.
    originals = [right_request(chance, api, version) for api, version in places for _ in range(8)]
    for _ in range(count):
        yield _altered(chance, chance.choice(originals))


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def test_every_api_and_version_has_a_right_request() -> None:
    chance = random.Random(1)
    for api, (low, high) in VERSIONS.items():
        for version in range(low, high + 1):
            request = read_request(memoryview(right_request(chance, api, version)))
            assert (request.api, request.version) == (api, version)


def test_altered_requests_are_parsed_or_refused() -> None:
    read = refused = 0
    before = 0
    for number, data in enumerate(_requests(DAY, PARSED)):
        try:
            read_request(memoryview(data))
            read += 1
        except Malformed:
            refused += 1
        if number == 5000:
            # Behind everything that is made once.
            before = _resident_bytes()
    # Both happen, or the alterations show nothing.
    assert read > PARSED // 10
    assert refused > PARSED // 10
    assert _resident_bytes() - before < GROWTH_MAX


@pytest.fixture(scope="module")
def open_listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    kafka = {"authentication_timeout": "10s", "request_timeout": "1s", "request_bytes_max": 1 << 20}
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS, kafka=kafka)) as found:
        yield found


def _send(address: tuple[str, int], requests: list[bytes], problems: list[str]) -> None:
    """Send requests, each answered or its connection closed; a new connection follows a closed one."""
    client: socket.socket | None = None
    try:
        for data in requests:
            if client is None:
                client = socket.create_connection(address, 30)
            try:
                client.sendall(struct.pack(">i", len(data)) + data)
                # A right request behind it: its answer, or the end, shows that the first one is done.
                client.sendall(request_bytes(ApiKey.API_VERSIONS, 0, 0x7FFFFFFF, {}))
                _until_answered(client)
            except TimeoutError:
                problems.append(f"no answer and no end within 30 s: {data.hex()}")
                return
            except OSError:
                client.close()
                client = None
    finally:
        if client is not None:
            client.close()


def _until_answered(client: socket.socket) -> None:
    while True:
        (size,) = struct.unpack(">i", _exactly(client, 4))
        if _exactly(client, size)[:4] == b"\x7f\xff\xff\xff":
            return


def _exactly(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = client.recv(count - len(found))
        if not more:
            raise ConnectionError("the end")
        found += more
    return found


def test_altered_requests_leave_the_listener_as_it_was(
    open_listener: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    problems: list[str] = []

    def play(seed: int, count: int) -> None:
        parts: list[list[bytes]] = [[] for _ in range(CONNECTIONS)]
        for number, data in enumerate(_requests(seed, count)):
            parts[number % CONNECTIONS].append(data)
        clients = [
            threading.Thread(target=_send, args=(open_listener.address, part, problems)) for part in parts
        ]
        for one in clients:
            one.start()
        for one in clients:
            one.join()

    # First what is made once: schemas, threads, buffers.
    play(DAY, 400)
    threads = {one.name for one in threading.enumerate() if one.name.startswith("kafka")}
    before = _resident_bytes()
    play(DAY + 1, SENT)
    assert problems == []
    assert _resident_bytes() - before < GROWTH_MAX
    assert threads <= {one.name for one in threading.enumerate()}
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []
    assert open_listener.service.server.counts.refused.get("failed", 0) == 0
    # What is right is still stored and found.
    with WireClient(open_listener.address) as client:
        stored = client.ask(
            ApiKey.PRODUCE,
            9,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [{"name": "kept", "partition_data": [{"index": 1, "records": BATCHES[0]}]}],
            },
        )
        assert stored.responses[0].partition_responses[0].error_code == 0
