"""Fuzz target: the bytes of an intake file, altered in every way that a disk, a tool or a stranger can.

The reader gives the records that were written, or an error that names the file. It never allocates much more
than the file's own size.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from archiver.runtime.errors import ArchiverError
from intake.read.reader import IntakeReader
from intake.segments import FileRef
from tests.support.fuzzing import fuzzing
from tests.support.intake.page_bomb import KEY, intake_bytes
from tests.support.objects.memory_store import MemoryObjectStore

ALLOCATED_MAX = 64 << 20


@cache
def original() -> tuple[bytes, bytes, pa.RecordBatch]:
    data, digest = intake_bytes(rows=60, value_bytes=100)
    ((_, rows),) = read(data, digest)
    return data, digest, rows


def read(data: bytes, digest: bytes) -> list[tuple[int, pa.RecordBatch]]:
    """The row groups, as if the log named this file with its size."""
    objects = MemoryObjectStore()
    objects.create(KEY, data)
    return list(IntakeReader(objects).row_groups(FileRef(7, KEY, len(data), digest), [0]))


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """The file with some bytes changed, left out, doubled or put in; mostly before the footer, which a digest
    covers."""
    data = bytearray(original()[0])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["flip", "flip", "set", "cut", "insert", "truncate"]))
        if kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            new = draw(st.binary(min_size=1, max_size=16))
            data[at : at + len(new)] = new
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=64))
        else:
            del data[at:]
        if not data:
            break
    return bytes(data)


@fuzzing(4)
@given(changed())
def test_an_altered_intake_file_gives_its_records_or_an_error_that_names_it(data: bytes) -> None:
    _, digest, rows = original()
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    previous = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    refused = KEY
    try:
        ((_, found),) = read(data, digest)
        assert found.equals(rows), "other records than were written"
        del found
    except ArchiverError as error:
        refused = str(error)
    finally:
        pa.set_memory_pool(previous)
    assert KEY in refused
    assert (pool.max_memory() or 0) < ALLOCATED_MAX
