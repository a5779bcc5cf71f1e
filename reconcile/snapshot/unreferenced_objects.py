"""Which objects below a table's folder nobody needs any more: the decision alone.

Pure. Kinds: archives below retention's start (`retired`), archives that the ledger killed (`killed`),
archives that neither a table nor a stream needs (`stray`), data files that others made and nothing names any
more (`foreign`), manifests, metadata and statistics that nothing names (`metadata`).

What is named by a retained snapshot, or by the table's metadata, stays (D1); so does what is pending, and
what a newer leader made. Beyond that an archive stays as long as streams need it: they find archives by
listing, so one that somebody compacted out of the table is the only place where its records stand byte for
byte. It goes if archives that stay, or intake, hold all of its offsets. A killed one is judged behind all
others and stands for those that are condemned: its commit may have landed, and then nobody else has its
records; streams read it (`archiver.ledger.archive_visibility`). `foreign`, `metadata` and strays must be
older than an age that configuration cannot set below a day: whoever writes such a file has it named only
later, and does not ask us.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.archived_ranges import ArchivedRanges
from archiver.ledger.views import TopicLedger
from archiver.objects.paths import ArchiveKey, data_prefix, metadata_prefix, parse_archive_key
from archiver.objects.store import ObjectInfo

Kind = Literal["intake", "superseded", "replaced", "retired", "killed", "stray", "foreign", "metadata"]
"""Of what goes: see `clean.py` for the first three."""

WHY: dict[Kind, str] = {
    "intake": "intake that nobody needs: archived below every retained snapshot, aborted, repeated, or never "
    "named in the log",
    "superseded": "a newer checkpoint of the log stands in its place",
    "replaced": "a replay or a compaction made it anew, and no retained snapshot of its table names it",
    "retired": "its records are older than the topic's retention, and no retained snapshot "
    "of its table names it",
    "killed": "it never goes into the table, the ledger says why, and other archives, or "
    "intake, hold all of its "
    "offsets",
    "stray": "no retained snapshot of its table names it, and other archives hold all of its offsets",
    "foreign": "a data file that the archiver did not make, and that no retained snapshot "
    "of its table names any "
    "more",
    "metadata": "neither the table's metadata nor a retained snapshot names it any more",
}
"""What the ledger is told of each kind, for people."""

_METADATA_ENDS = (
    ".avro",
    ".metadata.json",
    ".metadata.json.gz",
    ".gz.metadata.json",
    ".stats",
    ".puffin",
    ".parquet",
)
_DATA_ENDS = (".parquet", ".avro", ".orc", ".puffin")


@dataclass(frozen=True, slots=True)
class Unneeded:
    """An object that may be condemned, or deleted once it is."""

    key: str
    size: int
    kind: Kind


@dataclass
class Folder:
    """What is known of one topic when its folder is listed."""

    topic_id: str
    ledger: TopicLedger
    epoch: int
    """The newest of the control log: archives of later ones are somebody's who came after us."""
    condemned: Container[str]
    named: Container[str]
    """Keys that the table's metadata or a retained snapshot names."""
    has_table: bool
    """Without one, archives are found by listing alone, and there is nothing else in the folder."""
    old_us: int
    """What was stored before is old enough."""
    held: int = 0
    """Archives below a start that something still names, as far as the listing has come."""

    def archives(self, stored: Iterable[ObjectInfo]) -> Iterator[Unneeded]:
        """Of a listing of the topic's archives, in key order, what nobody needs; partition by partition, with
        one in memory at a time.

        Condemned objects that are still not needed are among it.
        """
        partition = _Partition(self, -1)
        for info in stored:
            parsed = parse_archive_key(info.key)
            if parsed is None or parsed.topic_id != self.topic_id:
                if self._is_foreign(info):
                    yield Unneeded(info.key, info.size, "foreign")
                continue
            if parsed.partition != partition.number:
                yield from partition.end()
                partition = _Partition(self, parsed.partition)
            yield from partition.take(info, parsed)
        yield from partition.end()

    def _is_foreign(self, info: ObjectInfo) -> bool:
        return (
            self.has_table
            and info.key.startswith(data_prefix(self.topic_id))
            and info.key.endswith(_DATA_ENDS)
            and info.modified_us < self.old_us
            and info.key not in self.named
        )

    def metadata(self, stored: Iterable[ObjectInfo]) -> Iterator[Unneeded]:
        """Of a listing of the table's metadata folder, what nothing names."""
        prefix = metadata_prefix(self.topic_id)
        for info in stored if self.has_table else ():
            ours = info.key.startswith(prefix) and info.key.endswith(_METADATA_ENDS)
            if ours and info.modified_us < self.old_us and info.key not in self.named:
                yield Unneeded(info.key, info.size, "metadata")


@dataclass
class _Partition:
    """The archives of one partition: those that stay, and those that others may make superfluous."""

    folder: Folder
    number: int
    stays: ArchivedRanges = field(default_factory=ArchivedRanges)
    open: list[_Archive] = field(default_factory=list)

    def take(self, info: ObjectInfo, key: ArchiveKey) -> Iterator[Unneeded]:
        """One archive more."""
        folder, ledger = self.folder, self.folder.ledger
        if (
            info.key in folder.named
            or ledger.pending_file(info.key) is not None
            or info.key in ledger.rewrites.under_way
        ):
            # What waits may be killed yet; and what was made anew or is condemned no stream reads, named or
            # not.
            if (
                info.key in folder.named
                and info.key not in ledger.unread
                and info.key not in folder.condemned
            ):
                self.stays.add(0, key.base, key.end)
            elif info.key in folder.named and self._is_killed(info.key):
                self.open.append(_Archive(key, info.size, "killed", may_go=False))
            folder.held += key.end <= ledger.start(key.partition)
        elif key.epoch > folder.epoch or info.key in ledger.rewrites.replaced:
            return  # somebody else's, or judged by itself
        elif key.end <= ledger.start(key.partition):
            yield Unneeded(info.key, info.size, "retired")
        else:
            killed = self._is_killed(info.key)
            old = killed or info.modified_us < folder.old_us
            self.open.append(_Archive(key, info.size, "killed" if killed else "stray", may_go=old))

    def _is_killed(self, name: str) -> bool:
        return name in self.folder.ledger.killed or name in self.folder.ledger.rewrites.abandoned

    def end(self) -> Iterator[Unneeded]:
        """The partition is listed to its end: of archives that nothing names, newer ones stand for older ones
        of the same offsets.
        """
        given_up = ArchiveVisibility.of(self.folder.ledger, self.number)
        for base, end in given_up.empty:
            self.stays.add(0, base, end)
        # Killed ones stand for those alone that are condemned, and condemned ones for nobody: what they gave
        # way to may stand behind them.
        for item in sorted(self.open, key=self._rank):
            base, end = item.key.base, item.key.end
            if given_up.is_held(self.stays, base, end):
                if item.may_go:
                    yield Unneeded(item.name, item.size, item.kind)
            elif item.name not in self.folder.condemned:
                self.stays.add(0, base, end)

    def _rank(self, item: _Archive) -> tuple[bool, bool, int, int, int]:
        return (
            item.name in self.folder.condemned,
            item.kind == "killed",
            -item.key.epoch,
            item.key.base,
            item.key.end,
        )


@dataclass(frozen=True, slots=True)
class _Archive:
    """One that others may make superfluous."""

    key: ArchiveKey
    size: int
    kind: Kind
    may_go: bool
    """Nothing names it, and it is old enough."""

    @property
    def name(self) -> str:
        """The key as it is written."""
        return self.key.key


Listing = Callable[[str], Iterable[ObjectInfo]]
"""The objects whose key begins so, in key order."""
