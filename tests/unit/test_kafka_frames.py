"""What a connection receives: in any pieces, within its time, and no more ahead than it may hold."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from archiver.kafka.frames import RECEIVE_BYTES, FrameReader, start_server

LATER_S = 30.0


def run(
    serve: Callable[[FrameReader], Awaitable[Any]],
    client: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> Any:
    """What `serve` returns for the connection of a client, or the error it raised."""

    async def main() -> Any:
        result = asyncio.get_running_loop().create_future()

        async def connected(reader: FrameReader, writer: asyncio.StreamWriter) -> None:
            try:
                result.set_result(await serve(reader))
            except Exception as error:  # noqa: BLE001 - the test judges it
                result.set_exception(error)
            writer.close()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = await start_server(connected, listener, None, None)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await client(reader, writer)
            try:
                return await asyncio.wait_for(result, LATER_S)
            finally:
                writer.close()
                server.close()

    return asyncio.run(main())


def later_s(seconds: float = LATER_S) -> float:
    return asyncio.get_running_loop().time() + seconds


async def frames(reader: FrameReader) -> list[bytes]:
    """Every frame until the client ends."""
    found: list[bytes] = []
    while True:
        try:
            (size,) = struct.unpack(">i", await reader.take(4, later_s()))
        except asyncio.IncompleteReadError as error:
            return [*found, error.partial] if error.partial else found
        found.append(bytes(await reader.take(size, later_s())))


@pytest.mark.parametrize("seed", range(6))
def test_frames_arrive_in_any_pieces(seed: int) -> None:
    choose = random.Random(seed)
    sizes = [0, 1, 100, RECEIVE_BYTES, RECEIVE_BYTES + 1, 3 * RECEIVE_BYTES, 300_000]
    sent = [choose.randbytes(choose.choice(sizes)) for _ in range(40)]
    data = b"".join(struct.pack(">i", len(one)) + one for one in sent)

    async def client(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = 0
        while at < len(data):
            size = choose.choice([1, 3, 5_000, 50_000, 500_000])
            writer.write(data[at : at + size])
            at += size
            if choose.random() < 0.5:
                await asyncio.sleep(0)
        writer.write_eof()

    assert run(frames, client) == sent


def test_a_client_that_sends_ahead_is_not_read() -> None:
    async def serve(reader: FrameReader) -> int:
        await reader.take(4, later_s())
        # Longer than a client takes that nothing stops.
        await asyncio.sleep(0.3)
        held = len(reader._early) - reader._early_at
        await reader.take(3_999_996, later_s())
        return held

    async def client(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(4_000_000))

    assert run(serve, client) <= 2 * RECEIVE_BYTES


@pytest.mark.parametrize("size", [100, 10 * RECEIVE_BYTES])
def test_an_end_inside_a_frame_differs_from_one_before_it(size: int) -> None:
    async def serve(reader: FrameReader) -> Any:
        await reader.take(4, later_s())
        await reader.take(size, later_s())

    async def inside(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(4 + 50))
        writer.write_eof()

    async def before(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(4))
        await asyncio.sleep(0.05)
        writer.write_eof()

    with pytest.raises(asyncio.IncompleteReadError) as found:
        run(serve, inside)
    assert len(found.value.partial) == 50
    with pytest.raises(asyncio.IncompleteReadError) as found:
        run(serve, before)
    assert not found.value.partial


@pytest.mark.parametrize("size", [100, 10 * RECEIVE_BYTES])
def test_a_slow_client_has_its_time_and_no_more(size: int) -> None:
    async def serve(reader: FrameReader) -> float:
        began_s = later_s(0)
        # A timer for a later time is there already, and one for an earlier time.
        await reader.take(4, later_s())
        with pytest.raises(TimeoutError):
            await reader.take(size, later_s(0.2))
        return later_s(0) - began_s

    async def client(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(4 + size - 1))

    assert 0.19 <= run(serve, client) < 5


def test_a_wait_that_ended_can_be_continued() -> None:
    async def serve(reader: FrameReader) -> bytes:
        with pytest.raises(TimeoutError):
            await reader.take(4, later_s(0.1))
        await asyncio.sleep(0.3)
        return bytes(await reader.take(4, later_s()))

    async def client(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ab")
        await asyncio.sleep(0.25)
        writer.write(b"cd")

    assert run(serve, client) == b"abcd"
