"""The records a run sends: each a function of seed, sender and number, so that a successor can send the same
record again.

No two records of a run are the same, in any form: tombstones, empty bytes, no key, headers with and without
values.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_TIME_US = 1_767_225_600_000_000
"""2026-01-01 in UTC; event times lie in the year that follows."""
YEAR_US = 365 * 86_400 * 1_000_000
LARGE_ONE_IN = 40
LARGE_BYTES = 40_000
LIFE_NUMBERS = 1_000_000
"""Each life of a worker numbers its records from its own million on."""

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Payload:
    """One record's content."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_us: int

    @property
    def digest(self) -> str:
        """What the record is known by."""
        return digest(self.key, self.value, self.headers, self.timestamp_us)


def payload(seed: int, sender: str, number: int) -> Payload:
    """The record of that number."""
    rng = random.Random(f"{seed}/{sender}/{number}")
    name = f"{seed}/{sender}/{number}".encode()
    size = LARGE_BYTES if rng.randrange(LARGE_ONE_IN) == 0 else rng.randrange(200)
    body: bytes | None = name + b"/" + rng.randbytes(size)
    headers: list[tuple[str, bytes | None]] = []
    if rng.random() < 0.2:
        headers += [("trace", rng.randbytes(8)), ("trace", None), ("", b"")]
    if (draw := rng.random()) < 0.08:
        body = None if draw < 0.05 else b""
        headers.append(("name", name))
    key = None if rng.random() < 0.2 else b"" if rng.random() < 0.05 else b"key-%d" % rng.randrange(50)
    return Payload(key, body, tuple(headers), FIRST_TIME_US + rng.randrange(YEAR_US))


def digest(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp_us: int
) -> str:
    """16 hex digits over everything a sender decides."""
    state = hashlib.sha256()
    parts: list[bytes | None] = [key, value, str(timestamp_us).encode()]
    for name, content in headers:
        parts += [name.encode(), content]
    for part in parts:
        state.update(b"-" if part is None else b"%d:" % len(part) + part)
    return state.hexdigest()[:16]
