"""Which objects below a table's folder nobody needs any more: the decision alone.

Pure. Kinds: archives below retention's start (`retired`), archives that the ledger killed (`killed`), archives that neither a table nor a
stream needs (`stray`), data files that others made and nothing names any more (`foreign`), manifests, metadata and statistics that nothing
names (`metadata`).

What is named by a retained snapshot, or by the table's metadata, stays (D1); so does what is pending, and what a newer leader made.
Beyond that an archive stays as long as streams need it: they find archives by listing, so one that somebody compacted out of the table
is the only place where its records stand byte for byte. It goes if archives that stay, or intake, hold all of its offsets. `foreign`,
`metadata` and strays must be older than an age that configuration cannot set below a day: whoever writes such a file has it named only
later, and does not ask us.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from archiver.ledger.coverage import Coverage
from archiver.ledger.views import TopicLedger
from archiver.objects.paths import ArchiveKey, archive_key, data_prefix, metadata_prefix, parse_archive_key
from archiver.objects.store import ObjectInfo

Kind = Literal["intake", "superseded", "replaced", "retired", "killed", "stray", "foreign", "metadata"]
"""Of what goes: see `clean.py` for the first three."""

WHY: dict[Kind, str] = {
    "intake": "intake that nobody needs: archived below every retained snapshot, aborted, repeated, or never named in the log",
    "superseded": "a newer checkpoint of the intake log stands in its place",
    "replaced": "a replay made it anew, and no retained snapshot of its table names it",
    "retired": "its records are older than the topic's retention, and no retained snapshot of its table names it",
    "killed": "it never goes into the table, the ledger says why, and other archives, or intake, hold all of its offsets",
    "stray": "no retained snapshot of its table names it, and other archives hold all of its offsets",
    "foreign": "a data file that the archiver did not make, and that no retained snapshot of its table names any more",
    "metadata": "neither the table's metadata nor a retained snapshot names it any more",
}
"""What the ledger is told of each kind, for people."""

_METADATA_ENDS = (".avro", ".metadata.json", ".metadata.json.gz", ".gz.metadata.json", ".stats", ".puffin", ".parquet")
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
        """Of a listing of the topic's archives, in key order, what nobody needs; partition by partition, with one in memory at a time.

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
    stays: Coverage = field(default_factory=Coverage)
    open: list[tuple[int, int, int, ArchiveKey, int, Kind, bool]] = field(default_factory=list)
    """(epoch downwards, base, end, what the key says, bytes, kind, old enough)."""

    def take(self, info: ObjectInfo, key: ArchiveKey) -> Iterator[Unneeded]:
        """One archive more."""
        folder, ledger = self.folder, self.folder.ledger
        if info.key in folder.named or ledger.pending_file(info.key) is not None or info.key in ledger.rewrites.under_way:
            # What waits may be killed yet; and what is unread or condemned no stream reads, named or not.
            if info.key in folder.named and info.key not in ledger.unread and info.key not in folder.condemned:
                self.stays.add(0, key.base, key.end)
            folder.held += key.end <= ledger.start(key.partition)
        elif key.epoch > folder.epoch or info.key in ledger.rewrites.replaced:
            return  # somebody else's, or judged by itself
        elif key.end <= ledger.start(key.partition):
            yield Unneeded(info.key, info.size, "retired")
        else:
            killed = info.key in ledger.killed or info.key in ledger.rewrites.abandoned
            old = killed or info.modified_us < folder.old_us
            self.open.append((-key.epoch, key.base, key.end, key, info.size, "killed" if killed else "stray", old))

    def end(self) -> Iterator[Unneeded]:
        """The partition is listed to its end: of archives that nothing names, newer ones stand for older ones of the same offsets."""
        for base, end in self.folder.ledger.passed.ranges(self.number):
            self.stays.add(0, base, end)
        ordered = sorted(self.open, key=lambda item: item[:3])
        named = [(_name_of(key), base, end, size, kind, old) for _, base, end, key, size, kind, old in ordered]
        # Condemned and killed ones stand for nobody, and what they gave way to may stand behind them: they are judged when all others are.
        # A killed one may have been in the table all the same, and compacted out of it before the ledger heard: then nobody else has it.
        for name, base, end, size, kind, old in sorted(named, key=lambda item: item[4] == "killed" or item[0] in self.folder.condemned):
            if old and self._is_covered(base, end):
                yield Unneeded(name, size, kind)
            elif kind != "killed" and name not in self.folder.condemned:
                self.stays.add(0, base, end)

    def _is_covered(self, base: int, end: int) -> bool:
        """Whether streams find its offsets elsewhere: in archives that stay, or in intake, which has all from the watermark on."""
        ledger = self.folder.ledger
        base, end = max(base, ledger.start(self.number)), min(end, ledger.watermarks.get(self.number, 0))
        return base >= end or any(low <= base and end <= high for low, high in self.stays.ranges(0))


def _name_of(key: ArchiveKey) -> str:
    return archive_key(key.topic_id, key.partition, key.granularity, key.partition_value, key.base, key.end, key.epoch)


Listing = Callable[[str], Iterable[ObjectInfo]]
"""The objects whose key begins so, in key order."""
