"""Does a decoder receive only complete containers within the bound, with the same entries?"""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest
import zstandard

from archiver.catalog.iceberg.avro_container import ENTRY_BYTES_MIN, DamagedContainer, container_of, plain

SIZES = {"name": "sizes", "type": {"type": "array", "items": "long"}}
SCHEMA = {"type": "record", "name": "entry", "fields": [{"name": "path", "type": "string"}, SIZES]}
ROWS = [{"path": f"file-{number}", "sizes": list(range(number % 7))} for number in range(2000)]
BOUND = 2**20


def container(rows: list[dict[str, Any]], codec: str = "null", schema: Any = None) -> bytes:
    if codec == "zstandard":
        return with_zstandard(container(rows, "null", schema))
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema or SCHEMA), rows, codec=codec, sync_interval=4000)
    return stream.getvalue()


def with_zstandard(data: bytes) -> bytes:
    """fastavro compresses with Zstandard only if another package is installed, which the tests do not
    require."""
    sync = data[-16:]
    head, *blocks, _ = data.split(sync)
    found = [head.replace(_long(4) + b"null", _long(9) + b"zstandard")]
    for block in blocks:
        stream = io.BytesIO(block)
        count = fastavro.schemaless_reader(stream, "long", None)
        assert isinstance(count, int)
        fastavro.schemaless_reader(stream, "long", None)
        coded = zstandard.compress(block[stream.tell() :])
        found.append(_long(count) + _long(len(coded)) + coded)
    return sync.join([*found, b""])


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "zstandard"])
def test_the_entries_stay(codec: str) -> None:
    found = plain(container(ROWS, codec), BOUND)
    assert list(fastavro.reader(io.BytesIO(found))) == ROWS
    assert plain(found, BOUND) == found


def test_a_container_without_entries_is_one() -> None:
    assert list(fastavro.reader(io.BytesIO(plain(container([]), BOUND)))) == []


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "zstandard"])
def test_more_than_the_bound_is_refused(codec: str) -> None:
    rows = [{"path": "x" * 1000, "sizes": []}] * 3000
    with pytest.raises(DamagedContainer, match=f"more than {BOUND} bytes"):
        plain(container(rows, codec), BOUND)


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_more_entries_than_the_bound_allows_are_refused(codec: str) -> None:
    """Small entries take fifty times their bytes of memory once they are decoded."""
    most = BOUND // ENTRY_BYTES_MIN
    assert container_of(container([{"path": "", "sizes": []}] * most, codec), BOUND).blocks
    with pytest.raises(DamagedContainer, match=f"more than {most} entries"):
        container_of(container([{"path": "", "sizes": []}] * (most + 1), codec), BOUND)


def test_a_cut_at_any_byte_is_noticed_except_behind_a_block() -> None:
    """Avro cannot detect a cut between two blocks. The length in the manifest list detects it."""
    data = container(ROWS[:300], "deflate")
    whole = 0
    for size in range(0, len(data), 3):
        try:
            plain(data[:size], BOUND)
            whole += 1
        except DamagedContainer:
            pass
    assert whole <= 3


def test_an_array_whose_elements_take_no_bytes_is_refused() -> None:
    """Its count alone would keep a decoder busy without an end."""
    empty = {"type": "record", "name": "nothing", "fields": []}
    schema = {
        "type": "record",
        "name": "entry",
        "fields": [{"name": "many", "type": {"type": "array", "items": empty}}],
    }
    with pytest.raises(DamagedContainer, match="take no bytes"):
        plain(container([{"many": [{}]}], schema=schema), BOUND)


CONTAINS_ITSELF = {"type": "record", "name": "loop", "fields": [{"name": "a", "type": "loop"}]}
NEST = "[" * 65 + '"null"' + "]" * 65


@pytest.mark.parametrize(
    "items",
    [
        CONTAINS_ITSELF,
        {"type": "fixed", "name": "f", "size": 0},
        "null",
        {"type": "fixed", "name": "f", "size": "1"},
    ],
    ids=["record of itself", "fixed of no bytes", "null", "fixed without a number"],
)
def test_elements_that_take_no_bytes_are_seen_in_any_form(items: Any) -> None:
    text = json.dumps(
        {
            "type": "record",
            "name": "entry",
            "fields": [{"name": "many", "type": {"type": "array", "items": items}}],
        }
    )
    with pytest.raises(DamagedContainer, match="take no bytes"):
        plain(with_schema(text.encode()), BOUND)


def test_a_schema_is_nested_up_to_a_bound() -> None:
    with pytest.raises(DamagedContainer, match="nested deeper than 64"):
        plain(with_schema(NEST.encode()), BOUND)


def test_a_header_has_a_bound_in_entries() -> None:
    """The header states the number of entries before them. Each entry takes at least two bytes."""
    data = container([])
    assert data[4:5] == _long(2)
    with pytest.raises(DamagedContainer, match="header has too many"):
        plain(data[:4] + _long(10_001) + data[5:] + bytes(40_000), BOUND)


def with_schema(text: bytes) -> bytes:
    """A container with this text as its schema."""
    data = container(ROWS[:1])
    schema = fastavro.reader(io.BytesIO(data)).metadata["avro.schema"].encode()
    return data.replace(_long(len(schema)) + schema, _long(len(text)) + text)


def test_a_window_of_zstandard_has_a_bound() -> None:
    """A frame states how much memory its decoder needs: here 1 GiB, for a block of few bytes."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=30, compression_level=1, write_content_size=False
    )
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    coded = frame.compress(b"x" * 100) + frame.flush()
    data = container([], "null").replace(_long(4) + b"null", _long(9) + b"zstandard")
    with pytest.raises(DamagedContainer, match="cannot be decompressed"):
        plain(data + _long(1) + _long(len(coded)) + coded + data[-16:], BOUND)


def test_a_count_beyond_the_bytes_is_refused() -> None:
    empty = {"type": "record", "name": "nothing", "fields": []}
    with pytest.raises(DamagedContainer, match="says that it holds"):
        plain(container([{}] * 10, schema=empty), BOUND)


@pytest.mark.parametrize("text", [b"", b"{", b"7", b'{"type": 7}', b'{"type": "record"}', b"[" * 100_000])
def test_a_schema_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedContainer):
        plain(with_schema(text), BOUND)


def _long(value: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", value)
    return stream.getvalue()


def test_any_damage_is_one_error() -> None:
    data = container(ROWS[:50], "deflate")
    draw = random.Random(20261126)
    refused = 0
    for _ in range(3000):
        start = draw.randrange(len(data))
        changed = data[:start] + draw.randbytes(draw.randrange(8)) + data[start + draw.randrange(8) :]
        try:
            assert len(plain(changed, BOUND)) <= BOUND + 1000
        except DamagedContainer:
            refused += 1
    assert refused > 1000
