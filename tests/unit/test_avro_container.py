"""Is what a decoder gets a complete container within the bound, with the same entries?"""

from __future__ import annotations

import io
import random
from typing import Any

import fastavro
import pytest
import zstandard

from archiver.catalog.avro_container import DamagedContainer, plain

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
    """fastavro compresses so only with a package that is not installed here."""
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


def test_a_cut_at_any_byte_is_noticed_except_behind_a_block() -> None:
    """Behind a block Avro itself cannot tell; the length in the manifest list does."""
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
    """Its count alone would keep a decoder busy for ever."""
    empty = {"type": "record", "name": "nothing", "fields": []}
    schema = {"type": "record", "name": "entry", "fields": [{"name": "many", "type": {"type": "array", "items": empty}}]}
    with pytest.raises(DamagedContainer, match="take no bytes"):
        plain(container([{"many": [{}]}], schema=schema), BOUND)


def test_a_count_beyond_the_bytes_is_refused() -> None:
    empty = {"type": "record", "name": "nothing", "fields": []}
    with pytest.raises(DamagedContainer, match="says that it holds"):
        plain(container([{}] * 10, schema=empty), BOUND)


@pytest.mark.parametrize("text", [b"", b"{", b"7", b'{"type": 7}', b'{"type": "record"}', b"[" * 100_000])
def test_a_schema_that_is_none_is_refused(text: bytes) -> None:
    data = container(ROWS[:1])
    schema = fastavro.reader(io.BytesIO(data)).metadata["avro.schema"].encode()
    with pytest.raises(DamagedContainer):
        plain(data.replace(_long(len(schema)) + schema, _long(len(text)) + text), BOUND)


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
