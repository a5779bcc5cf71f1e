"""The identifiers that cross module borders, and their only source.

`IdSource` is passed in (never global), so that a seeded run repeats itself exactly.
"""

from __future__ import annotations

import os
import random
import uuid
from typing import NewType, Protocol

TopicId = NewType("TopicId", str)
"""32 lower-case hex digits; a recreated topic has another one."""

TopicPartition = tuple[TopicId, int]

# Without I, L, O and U, and in ASCII order, so that the text sorts as the number does.
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class IdSource(Protocol):
    """Random bits, for identifiers only."""

    def random_bytes(self, count: int) -> bytes:
        """`count` random bytes, unique in practice."""


class SystemIds:
    """Identifiers from the operating system's generator."""

    def random_bytes(self, count: int) -> bytes:
        # Not `random`: forked workers would inherit its state and repeat each other's identifiers.
        return os.urandom(count)


class SeededIds:
    """Identifiers that repeat with the seed; for tests and simulation."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def new_entry_id(ids: IdSource) -> bytes:
    """16 bytes that identify a log entry uniquely (protocol rule L1)."""
    return ids.random_bytes(16)


def new_topic_id(ids: IdSource) -> TopicId:
    """A fresh topic identity."""
    return TopicId(ids.random_bytes(16).hex())


def new_uuid(ids: IdSource) -> uuid.UUID:
    """A random (version 4) UUID."""
    return uuid.UUID(bytes=ids.random_bytes(16), version=4)


def new_ulid(ids: IdSource, now_us: int) -> str:
    """A ULID (26 characters): 48 bits of milliseconds, then 80 random bits, so that names sort by time."""
    number = ((now_us // 1000) << 80) | int.from_bytes(ids.random_bytes(10), "big")
    # 26 digits of five bits each; the first has only the top three bits of 128.
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))
