"""Messages between the daemon and an intake worker: a length, then bytes.

The daemon sends pickled settings, and the worker sends JSON. Both ends of the channel belong to the daemon
and its own child process.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from typing import Any, Final

from archiver.config.settings import Settings
from archiver.runtime.redaction import hide, secrets_of

READY: Final = "ready"
"""Key of the first message of a worker that serves."""
MESSAGE_MAX: Final = 64 * 2**20
"""Bytes of the largest message: settings with very many topics."""
_LENGTH: Final = struct.Struct(">I")


class ChannelClosed(Exception):
    """The other process has ended, or has closed the channel."""


def send_settings(channel: socket.socket, settings: Settings) -> None:
    """Send settings to a worker, which uses them from then on; raises `ChannelClosed`."""
    # With their secrets, which no text form of the settings has.
    _send(channel, pickle.dumps(settings))


def receive_settings(channel: socket.socket) -> Settings:
    """In the worker: the next settings, whose secrets are redacted from then on; raises `ChannelClosed`."""
    # Only the parent process has the other end.
    found = pickle.loads(_receive(channel))  # noqa: S301
    assert isinstance(found, Settings), "the daemon sends nothing else"
    # The daemon redacts the secrets that it has read from the file, and a worker has read none.
    hide(secrets_of(found))
    return found


def send_numbers(channel: socket.socket, numbers: dict[str, Any]) -> None:
    """In the worker: send its counters; raises `ChannelClosed`."""
    _send(channel, json.dumps(numbers).encode())


def receive_numbers(channel: socket.socket) -> dict[str, Any]:
    """The next counters of a worker; raises `ChannelClosed`, and `TimeoutError` by the time of the socket."""
    found = json.loads(_receive(channel))
    assert isinstance(found, dict), "a worker sends nothing else"
    return found


def _send(channel: socket.socket, message: bytes) -> None:
    assert len(message) <= MESSAGE_MAX, "settings of a file are smaller"
    try:
        channel.sendall(_LENGTH.pack(len(message)) + message)
    except OSError as error:
        raise ChannelClosed from error


def _receive(channel: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    if length > MESSAGE_MAX:
        raise ChannelClosed
    return _exactly(channel, length)


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = channel.recv(size - len(parts))
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed from error
        if not part:
            raise ChannelClosed
        parts += part
    return bytes(parts)
