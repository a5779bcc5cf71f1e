"""Cached table metadata: bounded in bytes and age, stored only after a complete read, and never of a local
file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.iceberg import local_io
from archiver.catalog.iceberg.local_io import DurableFileIO, MetadataCache, _KeptStream, is_immutable
from archiver.runtime.clock import ManualClock

KEY = ("http://s3", "s3://b/metadata/snap-1.avro")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> MetadataCache:
    """Replaces the cache that the process shares."""
    made = MetadataCache(clock, bytes_max=100, file_bytes_max=40, age_max_s=60)
    monkeypatch.setattr(local_io, "SHARED", made)
    return made


def key(number: int) -> local_io.Key:
    return ("", str(number))


def test_the_entries_read_least_recently_make_room(cache: MetadataCache) -> None:
    for number in range(3):
        cache.put(key(number), b"x" * 30)
    assert cache.get(key(0)) == b"x" * 30
    cache.put(key(3), b"y" * 40)
    assert [cache.get(key(number)) is not None for number in range(4)] == [True, False, True, True]
    cache.put(key(3), b"z" * 5)
    cache.put(key(4), b"z" * 35)
    assert [cache.get(key(number)) is not None for number in (0, 2, 3, 4)] == [True, True, True, True], (
        "an entry counts once"
    )


def test_a_file_that_is_too_large_is_not_kept(cache: MetadataCache) -> None:
    cache.put(KEY, b"x" * 41)
    assert cache.get(KEY) is None
    stream = _KeptStream(io.BytesIO(b"x" * 41), KEY)
    assert stream.read() == b"x" * 41
    assert cache.get(KEY) is None


def test_an_entry_is_read_again_after_a_time(cache: MetadataCache, clock: ManualClock) -> None:
    cache.put(KEY, b"x")
    clock.advance(60)
    assert cache.get(KEY) == b"x"
    clock.advance(1)
    assert cache.get(KEY) is None


def _read_in_parts(stream: _KeptStream) -> None:
    while stream.read(3):
        pass


def _read_some(stream: _KeptStream) -> None:
    stream.read(3)


def _read_from_the_middle(stream: _KeptStream) -> None:
    stream.seek(2)
    stream.read()


def _read_nothing(stream: _KeptStream) -> None:
    stream.read(0)


@pytest.mark.parametrize(
    ("read", "kept"),
    [
        (_KeptStream.read, True),
        (_read_in_parts, True),
        (_read_some, False),
        (_read_nothing, False),
        (_read_from_the_middle, False),
    ],
)
def test_only_what_was_read_in_order_to_its_end_is_kept(cache: MetadataCache, read: Any, kept: bool) -> None:
    with _KeptStream(io.BytesIO(b"content"), KEY) as stream:
        read(stream)
    assert cache.get(KEY) == (b"content" if kept else None)


def test_a_read_that_fails_keeps_nothing(cache: MetadataCache) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError("connection reset")
            return super().read(3)

    stream = _KeptStream(Broken(b"content"), KEY)
    with pytest.raises(OSError, match="reset"):
        _read_in_parts(stream)
    assert cache.get(KEY) is None


def test_local_files_and_data_files_are_not_cached(cache: MetadataCache, tmp_path: Path) -> None:
    path = tmp_path / "v1.metadata.json"
    path.write_bytes(b"{}")
    files = DurableFileIO({})
    with files.new_input(f"file://{path}").open() as stream:
        assert stream.read() == b"{}"
    path.write_bytes(b"[]")
    with files.new_input(f"file://{path}").open() as stream:
        assert stream.read() == b"[]"
    assert [
        is_immutable(name) for name in ("s3://b/a.avro", "s3://b/v1.gz.metadata.json", "s3://b/a.parquet")
    ] == [True, True, False]
