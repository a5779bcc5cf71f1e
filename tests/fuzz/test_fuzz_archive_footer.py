"""Fuzz target: the footer of an archive, its bytes and what its metadata says.

The footer is read, or refused with an error that names the archive. Bytes under another checksum never reach
the Parquet library.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import parse_archive_key
from archiver.runtime.errors import ArchiverError
from archiver.stream.archives import FoundArchive, check_footer, read_footer
from tests.support.builders.refining import CLUSTER, NOW, refine
from tests.support.fuzzing import fuzzing
from tests.support.intake.intake_files import Intake, Row
from tests.support.objects.memory_store import MemoryObjectStore


@cache
def archive() -> tuple[bytes, str, dict[str, str]]:
    """An archive, its key, and the metadata of its footer."""
    import pyarrow.parquet as pq

    with TemporaryDirectory() as folder:
        intake = Intake(LocalObjectStore(Path(folder)))
        topic = intake.topic("t")
        intake.file({(topic, 0): [Row(NOW, b"v%d" % number) for number in range(50)]})
        (result,) = refine(intake, intake.plans(topic), ahead=False)
        key = result.files[0].archive.key
        data = (Path(folder) / key).read_bytes()
    pairs = pq.read_metadata(io.BytesIO(data)).metadata or {}
    return (
        data,
        key,
        {name.decode(): text.decode() for name, text in pairs.items() if name.startswith(b"archiver.")},
    )


def found_of(data: bytes, key: str) -> FoundArchive:
    parsed = parse_archive_key(key)
    assert parsed is not None
    return FoundArchive.of(key, len(data), parsed)


@fuzzing(2)
@given(st.data())
def test_altered_bytes_of_a_footer_are_refused(data: st.DataObject) -> None:
    given_bytes, key, _ = archive()
    altered = bytearray(given_bytes)
    start = len(altered) - 8 - int.from_bytes(altered[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(start, len(altered) - 1))
        altered[at : at + 1] = data.draw(
            st.one_of(st.binary(min_size=1, max_size=1), st.just(b""), st.binary(min_size=2, max_size=8))
        )
        start = min(start, max(0, len(altered) - 1))
    objects = MemoryObjectStore()
    objects.create(key, bytes(altered))
    refused = key
    try:
        footer = read_footer(objects, found_of(bytes(altered), key), CLUSTER)
        assert bytes(altered[start:]) == given_bytes[start:] and footer.schema_version == 1
    except ArchiverError as error:
        refused = str(error)
    assert key in refused


NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=5))
JSON = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=10).map(json.dumps)
TEXTS = st.one_of(JSON, st.text(max_size=40)).map(lambda text: text.encode("utf-8", "replace"))


@fuzzing(2)
@given(
    st.sampled_from(["version", "gaps", "schema", "records_digest", "base", "end", "partition", "topic_id"]),
    st.one_of(TEXTS, st.binary(max_size=40)),
)
@example("gaps", b"[" * 100_000)
@example("gaps", b"[[1e400, 2]]")
@example("gaps", b"[[" + b"9" * 10_000 + b", 2]]")
@example("schema", b"9" * 10_000)
@example("records_digest", b"zz")
@example("records_digest", "\u0661".encode())
def test_any_metadata_is_read_or_refused_by_name(name: str, text: bytes) -> None:
    data, key, pairs = archive()
    metadata: Any = {known.encode(): value.encode() for known, value in pairs.items()} | {
        f"archiver.{name}".encode(): text
    }
    found = found_of(data, key)
    refused = key
    try:
        footer = check_footer(found, SimpleNamespace(metadata=metadata), CLUSTER)  # type: ignore[arg-type]
        assert all(found.base <= low < high <= found.end for low, high in footer.gaps)
        assert 0 <= footer.schema_version < 2**63 and len(footer.records_digest) <= 64
    except ArchiverError as error:
        refused = str(error)
    assert key in refused and len(refused) < 2000
