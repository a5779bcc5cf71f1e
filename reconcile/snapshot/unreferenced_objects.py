"""Decides which objects below a table's folder can be deleted.

Objects that a retained snapshot or the table's metadata names stay (D1). So do pending archives and those of
a newer leader. Beyond that an archive stays for as long as streams need it: streams find archives by listing,
so an archive that another writer compacted away is the only exact copy of its records. It can be deleted if
archives that stay, or intake, hold all of its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.views import ArchivedRanges, TopicLedger
from archiver.objects.paths import ArchiveKey, data_prefix, metadata_prefix, parse_archive_key
from archiver.objects.store import ObjectInfo

Kind = Literal["intake", "superseded", "replaced", "retired", "killed", "stray", "foreign", "metadata"]
"""Kinds of objects that can be deleted. `reconcile/vacuum/clean.py` decides on the first three."""

WHY: dict[Kind, str] = {
    "intake": "intake that is not needed: archived below every retained snapshot, aborted, repeated, or "
    "never named in the log",
    "superseded": "a newer checkpoint of the log replaces it",
    "replaced": "a replay or a compaction replaced it, and no retained snapshot of its table names it",
    "retired": "its records are older than the topic's retention, and no retained snapshot "
    "of its table names it",
    "killed": "it will never be in the table (the ledger has the reason), and other archives, or "
    "intake, hold all of its "
    "offsets",
    "stray": "no retained snapshot of its table names it, and other archives hold all of its offsets",
    "foreign": "a data file that the archiver did not make, and that no retained snapshot "
    "of its table names any "
    "more",
    "metadata": "neither the table's metadata nor a retained snapshot names it any more",
}
"""The reason that the ledger records for each kind, for people."""

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
    """An object that may be marked for deletion, or deleted if it is marked."""

    key: str
    size: int
    kind: Kind


@dataclass
class Folder:
    """The state of one topic when its folder is listed."""

    topic_id: str
    ledger: TopicLedger
    epoch: int
    """The newest epoch in the control log. Archives of later epochs belong to a newer leader."""
    condemned: Container[str]
    """Keys that the ledger marked for deletion."""
    named: Container[str]
    """Keys that the table's metadata or a retained snapshot names."""
    has_table: bool
    """Without a table, archives are found by listing alone, and the folder holds nothing else."""
    old_us: int
    """Objects stored before that time are old enough."""
    held: int = 0
    """Archives below a start that a snapshot or the ledger still names, in the listing so far."""

    def archives(self, stored: Iterable[ObjectInfo]) -> Iterator[Unneeded]:
        """The archives of a listing, in key order, that are not needed. One partition is in memory at a time.

        Objects that are marked for deletion and still not needed are among them.
        """
        # A listing is in key order, so the archives of one partition are adjacent.
        partition = _Partition(self, -1)
        for info in stored:
            parsed = parse_archive_key(info.key)
            if parsed is None or parsed.topic_id != self.topic_id:
                if self._is_external(info):
                    yield Unneeded(info.key, info.size, "foreign")
                continue
            if parsed.partition != partition.number:
                yield from partition.end()
                partition = _Partition(self, parsed.partition)
            yield from partition.take(info, parsed)
        yield from partition.end()

    def _is_external(self, info: ObjectInfo) -> bool:
        return (
            self.has_table
            and info.key.startswith(data_prefix(self.topic_id))
            and info.key.endswith(_DATA_ENDS)
            # Another writer names its file only after it has stored it. Age alone separates it from garbage.
            and info.modified_us < self.old_us
            and info.key not in self.named
        )

    def metadata(self, stored: Iterable[ObjectInfo]) -> Iterator[Unneeded]:
        """The unreferenced objects of a listing of the table's metadata folder."""
        prefix = metadata_prefix(self.topic_id)
        for info in stored if self.has_table else ():
            ours = info.key.startswith(prefix) and info.key.endswith(_METADATA_ENDS)
            # A commit in progress has stored its manifests and not yet swapped, so young ones stay.
            if ours and info.modified_us < self.old_us and info.key not in self.named:
                yield Unneeded(info.key, info.size, "metadata")


@dataclass
class _Partition:
    """The archives of one partition: those that stay, and those that other archives may replace."""

    folder: Folder
    number: int
    stays: ArchivedRanges = field(default_factory=ArchivedRanges)
    open: list[_Archive] = field(default_factory=list)

    def take(self, info: ObjectInfo, key: ArchiveKey) -> Iterator[Unneeded]:
        """Add one archive of the listing."""
        folder, ledger = self.folder, self.folder.ledger
        if (
            info.key in folder.named
            or ledger.pending_file(info.key) is not None
            or info.key in ledger.rewrites.under_way
        ):
            # Only archives that streams read count as copies. A pending one may still be killed. One that was
            # rewritten or is marked for deletion is not read, named or not.
            if (
                info.key in folder.named
                and info.key not in ledger.unread
                and info.key not in folder.condemned
            ):
                self.stays.add(0, key.base, key.end)
            # Readers use a killed archive as the last choice, so it may replace a marked one.
            elif info.key in folder.named and self._is_killed(info.key):
                self.open.append(_Archive(key, info.size, "killed", may_go=False))
            folder.held += key.end <= ledger.start(key.partition)
        elif key.epoch > folder.epoch or info.key in ledger.rewrites.replaced:
            # Its leader may still append it to the ledger, or `reconcile/vacuum/clean.py` decides on it.
            return
        elif key.end <= ledger.start(key.partition):
            yield Unneeded(info.key, info.size, "retired")
        else:
            killed = self._is_killed(info.key)
            # The ledger never accepts a killed archive again, so its age does not matter.
            old = killed or info.modified_us < folder.old_us
            self.open.append(_Archive(key, info.size, "killed" if killed else "stray", may_go=old))

    def _is_killed(self, name: str) -> bool:
        return name in self.folder.ledger.killed or name in self.folder.ledger.rewrites.abandoned

    def end(self) -> Iterator[Unneeded]:
        """End the partition. Among unreferenced archives of the same offsets the newest stays."""
        # Coverage by the rules that readers use: cleaning must not delete what a stream would read.
        given_up = ArchiveVisibility.of(self.folder.ledger, self.number)
        for base, end in given_up.empty:
            self.stays.add(0, base, end)
        # A killed archive counts as a copy only for those marked for deletion: its commit may have been
        # applied, and then it is the only copy. One that is marked never counts: the archive that replaced
        # it may come later in this order.
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
    """An archive whose offsets other archives may hold."""

    key: ArchiveKey
    size: int
    kind: Kind
    may_go: bool
    """Whether it is unreferenced and old enough."""

    @property
    def name(self) -> str:
        """The key as it is written."""
        return self.key.key


Listing = Callable[[str], Iterable[ObjectInfo]]
"""The objects whose key begins so, in key order."""
