"""Finds the archives of a topic partition by listing the object store.

An archive that is found covers the offset asked for. Any archive that covers it is right, from any writer and
in any table or none: records are a function of the log, and an object is either complete or absent. Archives
that the ledger has killed or replaced are left out, because they may be deleted while they are read. Killed
ones whose offsets no other archive holds are kept.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.events.types import DataFile
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.objects import paths
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Corrupted, Halt, NotFound, passing
from archiver.runtime.ids import TopicId
from archiver.stream.seal import check_seal

FOOTER_VERSIONS = {"1": 1, "2": 2}
"""The forms of a footer that this version reads, and the format of the records digest in each."""
_SHOWN_MAX = 200
"""Characters of a footer's text in an error."""
_SCHEMAS = 2**31
_DIGEST_BYTES = 32
"""Of both formats. An error shows the whole digest, so another length is refused."""
_PREFIX = b"archiver."
NOTHING_GIVEN_UP = ArchiveVisibility()


@dataclass(frozen=True, slots=True)
class FoundArchive:
    """One archive as its key describes it."""

    key: str
    size: int
    topic_id: TopicId
    partition: int
    base: int
    end: int
    """Exclusive."""
    epoch: int

    @classmethod
    def of(cls, key: str, size: int, parsed: paths.ArchiveKey) -> FoundArchive:
        """From the parsed key."""
        return cls(
            key, size, TopicId(parsed.topic_id), parsed.partition, parsed.base, parsed.end, parsed.epoch
        )


@dataclass(frozen=True, slots=True)
class FoundFooter:
    """What reading back needs from an archive's footer keys."""

    gaps: tuple[tuple[int, int], ...]
    schema_version: int
    records_digest: bytes
    """By `intake.read.digest` over all records of the archive."""
    digest_version: int
    """The format of the digest, one of `intake.read.digest.DIGEST_VERSIONS`."""


class ArchiveIndex:
    """The archives of one topic partition by offset; they may overlap."""

    def __init__(self, archives: Iterable[FoundArchive]) -> None:
        self._archives = sorted(archives, key=lambda found: (found.base, found.end, found.epoch))
        self._bases = [found.base for found in self._archives]
        self._reach: list[int] = []
        """The highest end of this archive and all before it: where a search backwards may stop."""
        for found in self._archives:
            self._reach.append(max(found.end, self._reach[-1] if self._reach else 0))

    def __len__(self) -> int:
        return len(self._archives)

    def covering(self, offset: int) -> FoundArchive | None:
        """The archive that holds `offset` and has the highest end; of equal ones that of the newest epoch."""
        best: FoundArchive | None = None
        position = bisect_right(self._bases, offset) - 1
        # Archives overlap, so the search goes back until none of the earlier ones can reach the offset.
        while position >= 0 and self._reach[position] > offset:
            found = self._archives[position]
            # The highest end needs the fewest archives.
            if found.end > offset and (best is None or (found.end, found.epoch) > (best.end, best.epoch)):
                best = found
            position -= 1
        return best

    def next_base(self, offset: int) -> int | None:
        """Where the first archive beyond `offset` begins; None if there is none."""
        position = bisect_left(self._bases, offset + 1)
        return self._bases[position] if position < len(self._bases) else None


def find_archives(
    objects: ObjectStore, topic_id: TopicId, partition: int, given_up: ArchiveVisibility = NOTHING_GIVEN_UP
) -> ArchiveIndex:
    """List the archives of a topic partition; other objects, and archives in `given_up`, are skipped."""
    return ArchiveIndex(given_up.kept(list_archives(objects, topic_id, partition)))


def list_archives(
    objects: ObjectStore, topic_id: TopicId, partition: int | None = None
) -> Iterable[FoundArchive]:
    """Every archive of a topic, or of one of its partitions, in the order of the keys."""
    for info in objects.list(paths.data_prefix(topic_id, partition)):
        parsed = paths.parse_archive_key(info.key)
        # A folder may hold objects that were put there by hand.
        if parsed is not None and parsed.topic_id == topic_id and partition in (None, parsed.partition):
            yield FoundArchive.of(info.key, info.size, parsed)


def read_footer(objects: ObjectStore, found: FoundArchive, cluster_id: str) -> FoundFooter:
    """An archive's footer, compared with its checksum and its key. Raises `Corrupted` as `check_footer`, or
    if it cannot be read.
    """
    try:
        with objects.open_input(found.key) as source:
            # Before the Parquet library parses anything: a damaged footer can end the process.
            check_seal(source, found.key)
            source.seek(0)
            return check_footer(found, pq.read_metadata(source), cluster_id)
    except (NotFound, pa.ArrowException, OSError, ValueError) as error:
        damage = Corrupted(
            f"{found.key} cannot be read ({error}); offsets {found.base} to {found.end - 1} are in it"
        )
        raise passing(error, found.key) or damage from error


def check_footer(found: FoundArchive, metadata: pq.FileMetaData, cluster_id: str) -> FoundFooter:
    """Compare an archive's footer with its key.

    Raises `Corrupted` if it is of another cluster, topic or range, or is not an archive; `Halt` for an
    unknown format version.
    """
    values = {
        name.removeprefix(_PREFIX).decode("utf-8", "replace"): text.decode("utf-8", "replace")
        for name, text in _pairs(metadata)
    }
    version = values.get("version")
    # The version before everything else: only it says what the other keys mean.
    if version is None:
        raise Corrupted(f"{found.key} has no archiver footer: it is not an archive; move it away")
    if version not in FOOTER_VERSIONS:
        said = version[:_SHOWN_MAX]
        # Not `Corrupted`: the object is whole, and another version of this program can read it.
        raise Halt(
            f"{found.key} is an archive of version {said}; this version reads "
            f"{', '.join(FOOTER_VERSIONS)}: use the version that wrote it"
        )
    expected = {
        "cluster_id": cluster_id,
        "topic_id": found.topic_id,
        "partition": str(found.partition),
        "base": str(found.base),
        "end": str(found.end),
    }
    for name, text in expected.items():
        if values.get(name) != text:
            said = str(values.get(name))[:_SHOWN_MAX]
            raise Corrupted(
                f"{found.key}: its footer says {name} {said!r}, its place says {text!r}; the object "
                "was moved or altered"
            )
    try:
        gaps = tuple((int(low), int(high)) for low, high in json.loads(values["gaps"]))
        schema, digest = int(values["schema"]), bytes.fromhex(values["records_digest"])
        if len(digest) != _DIGEST_BYTES:
            raise ValueError(f"a digest of {len(digest)} bytes")
        # Checked here, because the chain of offsets is computed from them.
        if not all(found.base <= low < high <= found.end for low, high in gaps) or not 0 <= schema < _SCHEMAS:
            raise ValueError("numbers that are not the archive's")
    # `RecursionError`: deeply nested JSON; `OverflowError`: a number that no integer type holds.
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        why = str(error)[:_SHOWN_MAX]
        raise Corrupted(
            f"{found.key}: its footer lacks readable gaps, schema or digest ({why}); the object was altered"
        ) from error
    return FoundFooter(gaps, schema, digest, FOOTER_VERSIONS[version])


def _pairs(metadata: pq.FileMetaData) -> list[tuple[bytes, bytes]]:
    return [(name, text) for name, text in (metadata.metadata or {}).items() if name.startswith(_PREFIX)]


@dataclass(frozen=True, slots=True)
class DescribedArchive:
    """An archive as its footer describes it. Passed from the reader of footers to the maker of tables."""

    found: FoundArchive
    footer: FoundFooter
    columns: pa.Schema
    """With the field ids in the file."""
    data_file: DataFile


Describe = Callable[[FoundArchive], DescribedArchive]
"""Reads a footer; raises `Corrupted` if the archive cannot be read or is not what its key says."""
