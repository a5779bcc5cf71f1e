"""File format of the charts of lag and traffic, version 1 (0099). Pure.

A line of JSON, then the compressed samples. Every byte is checked before it is used: a file that this program
did not write, or that is damaged, is refused as a whole.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator
from typing import Any, Final

from archiver.runtime.local_file import NotUsable
from archiver.status.history import SERIES, STEPS, KeptHistory, KeptSeries

FORMAT: Final = 1
TOPICS_MAX: Final = 2000
"""Topics in a file; further ones begin without history after a restart."""
NAME_BYTES_MAX: Final = 1000
_HEAD_BYTES_MAX: Final = 4096
_TOPIC: Final = struct.Struct("<HH")
"""Length of the name, and steps since the newest sample."""
# Floats are exact enough for a chart, except for large numbers of records.
_STORED: Final = {"seconds": "f", "records": "d", "records_per_s": "f", "bytes_per_s": "f"}
_IN_MEMORY: Final = {"seconds": "d", "records": "d", "records_per_s": "f", "bytes_per_s": "f"}
_VALUES_BYTES: Final = sum(array(code).itemsize for code in _STORED.values()) * STEPS
_BODY_BYTES_MAX: Final = TOPICS_MAX * (_TOPIC.size + NAME_BYTES_MAX + _VALUES_BYTES)
FILE_BYTES_MAX: Final = _HEAD_BYTES_MAX + _BODY_BYTES_MAX + _BODY_BYTES_MAX // 1000 + 1024
"""22 MB: compression makes random values slightly larger. Typical histories take 1 to 3 KB a topic."""


def encode(history: KeptHistory, now_us: int, cluster_id: str) -> bytes:
    """The file with at most `TOPICS_MAX` topics, as of `now_us`."""
    body = b"".join(
        _encoded(name, series)
        for name, series in list(history.topics.items())[:TOPICS_MAX]
        if len(name.encode()) <= NAME_BYTES_MAX
    )
    head = {
        "file": "stream-archiver charts",
        "format": FORMAT,
        "cluster_id": cluster_id,
        # Wall time: the monotonic clock begins again when the machine does.
        "newest_us": now_us - round(history.ago_s * 1e6),
        "span_s": history.span_s,
        "known_s": history.known_s,
        "steps": STEPS,
        "crc32": zlib.crc32(body),
    }
    # The fastest level: most values repeat, so a better one saves little.
    return json.dumps(head).encode() + b"\n" + zlib.compress(body, 1)


def decode(data: bytes, now_us: int, cluster_id: str) -> KeptHistory:
    """The history as of `now_us`; raises `NotUsable` with the reason."""
    line, newline, rest = data.partition(b"\n")
    if not newline or len(line) > _HEAD_BYTES_MAX:
        raise NotUsable("it does not begin as such a file does")
    try:
        head = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotUsable("its first line is not JSON") from error
    if not isinstance(head, dict) or head.get("file") != "stream-archiver charts":
        raise NotUsable("it holds no charts")
    # A bool equals 1, so the types are compared too.
    if [type(head.get("format")), head.get("format"), head.get("steps")] != [int, FORMAT, STEPS]:
        raise NotUsable("it has another format")
    if head.get("cluster_id") != cluster_id:
        raise NotUsable("it is of another cluster")
    newest_us: Any = head.get("newest_us")
    span_s: Any = head.get("span_s")
    known_s: Any = head.get("known_s")
    is_moment = type(newest_us) is int and 0 <= newest_us < 2**63
    if not is_moment or not _is_time(span_s) or not _is_time(known_s):
        raise NotUsable("its times are none")
    body = _body(rest)
    if zlib.crc32(body) != head.get("crc32"):
        raise NotUsable("its checksum is another one")
    # A wall clock that was set back must not put samples into the future.
    ago_s = max(0, now_us - newest_us) / 1e6
    return KeptHistory(ago_s, float(span_s), float(known_s), dict(_topics(body)))


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9


def _body(data: bytes) -> bytes:
    """The samples, decompressed up to their bound."""
    inflate = zlib.decompressobj()
    try:
        # A few bytes could otherwise become gigabytes.
        body = inflate.decompress(data, _BODY_BYTES_MAX)
    except zlib.error as error:
        raise NotUsable("its samples cannot be decompressed") from error
    if not inflate.eof or inflate.unused_data:
        raise NotUsable("its samples are cut off or too many")
    return body


def _encoded(name: str, series: KeptSeries) -> bytes:
    text = name.encode()
    # A topic that was not sampled for a whole span is dropped before, so the number fits.
    head = _TOPIC.pack(len(text), min(series.steps_ago, STEPS - 1))
    return (
        head
        + text
        + b"".join(_little_endian(array(_STORED[one], series.values[one])).tobytes() for one in SERIES)
    )


def _topics(body: bytes) -> Iterator[tuple[str, KeptSeries]]:
    at, seen = 0, set[str]()
    while at < len(body):
        try:
            length, steps_ago = _TOPIC.unpack_from(body, at)
            name = body[at + _TOPIC.size : at + _TOPIC.size + length].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise NotUsable("a topic in it is damaged") from error
        at += _TOPIC.size + length
        values = body[at : at + _VALUES_BYTES]
        whole = len(values) == _VALUES_BYTES and 0 < length <= NAME_BYTES_MAX and steps_ago < STEPS
        if not whole or name in seen or len(seen) >= TOPICS_MAX:
            raise NotUsable("a topic in it is damaged")
        seen.add(name)
        yield name, KeptSeries(steps_ago, _decoded(values))
        at += _VALUES_BYTES


def _decoded(data: bytes) -> dict[str, array[float]]:
    found: dict[str, array[float]] = {}
    at = 0
    for one in SERIES:
        stored: array[float] = array(_STORED[one])
        size = stored.itemsize * STEPS
        stored.frombytes(data[at : at + size])
        at += size
        values = array(_IN_MEMORY[one], _little_endian(stored))
        # NaN is an unknown sample; no lag and no rate is infinite or negative.
        if any(value < 0 or math.isinf(value) for value in values):
            raise NotUsable("a sample in it is no number of a lag")
        found[one] = values
    return found


def _little_endian(values: array[float]) -> array[float]:
    """The values with their bytes turned on a machine of the other order."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
