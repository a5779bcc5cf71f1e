"""Commits rewritten archives to their table: the common part of replay and compaction.

Owns the order of effects (`docs/protocols/replay.md`): FILES_REWRITTEN → the table's swap → REWRITE_SETTLED.
The new objects are stored before the first of these. Can be killed at any step; the next run resolves the
outcome. Never deletes an object, and never moves a watermark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.catalog.commit import Committer
from archiver.catalog.evidence import Gaps
from archiver.catalog.identity import TableTarget
from archiver.catalog.replace_files import Exchange, Exchanged, FileReplacer
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.tables import Tables, TableView
from archiver.ledger.archives import OldArchive
from archiver.ledger.bridge import append_in_parts
from archiver.ledger.leader import Leader
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2 as pb
from archiver.refine.task import WrittenFile
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource, new_uuid
from archiver.runtime.text import counted


@dataclass(frozen=True)
class Remade:
    """A rewritten archive that is in no log yet."""

    olds: tuple[OldArchive, ...]
    """The archives that it replaces, in the order of their offsets."""
    paths: tuple[str, ...]
    """The old archives' paths in the table."""
    written: WrittenFile

    @property
    def key(self) -> str:
        """Key of the new archive."""
        return self.written.archive.key


class TableRewriter:
    """Replaces archives of one topic's table. To be used by the leader within its turn."""

    def __init__(
        self,
        objects: ObjectStore,
        leader: Leader,
        limits: CommitLimits,
        clock: Clock,
        ids: IdSource,
        progress: Callable[[str], None],
        tables: Tables,
        target: TableTarget,
        gaps: Gaps,
        kind: str,
        skip: Callable[[str, str], None],
    ) -> None:
        """`kind` is one of `archiver.catalog.replace_files.SUMMARY_KEYS`, and names the failpoints. `skip` is
        called with an archive that stays as it is, and why.
        """
        self._leader = leader
        self._ids = ids
        self._progress = progress
        self._target = target
        self._gaps = gaps
        self._kind = kind
        self._skip = skip
        self.committer = Committer(tables, leader, limits, clock)
        self._exchanger = FileReplacer(tables, self.committer, leader, limits, clock, objects.uri, kind)

    def settle(self) -> None:
        """Record the outcome of what earlier runs left. Raises as `FileReplacer.exchange`."""
        # No archives are offered, so the id names no commit.
        nothing = uuid.UUID(int=0)
        self._tell(self._exchanger.exchange(self._target, (), nothing, self._gaps), nothing)

    def sound(self) -> TableView | None:
        """As `Committer.sound`."""
        return self.committer.sound(self._target, self._gaps)

    def exchange(self, made: Sequence[Remade], view: TableView) -> Exchanged | None:
        """Replace archives in the table, which was `view` when they were chosen; None if the table is gone.

        Raises as `FileReplacer.exchange`, or the error of an append.
        """
        # The entry comes before the swap: a file in the table that no log names could not be attributed.
        commit_id = new_uuid(self._ids)
        failpoints.reach(f"{self._kind}.written.before")
        append_in_parts(
            self._leader,
            made,
            lambda part, _: self._body(part, view, commit_id),
            lambda item: f"archive {item.key}",
        )
        failpoints.reach(f"{self._kind}.written.after")
        under_way = self._leader.fold.topic(self._target.topic_id).rewrites.under_way
        exchanges: list[Exchange] = []
        for item in made:
            # The fold decides: it refuses an entry whose old archive is marked, or whose key was used.
            if item.key in under_way:
                exchanges.append(Exchange(under_way[item.key], item.paths, item.written.data_file))
            else:
                self._skip(
                    item.olds[0].key,
                    f"the ledger refused {item.key}, or an old archive is marked for deletion; the next "
                    "run checks again",
                )
        # Also without exchanges: rewrites of earlier runs are resolved here.
        exchanged = self._exchanger.exchange(self._target, exchanges, commit_id, self._gaps)
        self._tell(exchanged, commit_id)
        return exchanged

    def _body(self, part: Sequence[Remade], view: TableView, commit_id: uuid.UUID) -> pb.FilesRewritten:
        files = [
            pb.FilesRewritten.File(
                old_key=item.olds[0].key,
                old_size=item.olds[0].size,
                archive=item.written.archive.to_proto(),
                more=[pb.FilesRewritten.OldFile(key=old.key, size=old.size) for old in item.olds[1:]],
            )
            for item in part
        ]
        return pb.FilesRewritten(
            commit_id=commit_id.bytes,
            topic_id=bytes.fromhex(self._target.topic_id),
            table_uuid=view.uuid.bytes,
            # With it a later run can prove that the new file was never in the table (as rule T3).
            last_sequence_number=view.sequence_number,
            files=files,
        )

    def _tell(self, exchanged: Exchanged | None, commit_id: uuid.UUID) -> None:
        """Append REWRITE_SETTLED, unless there is nothing to record."""
        # No outcome is new, or the table is gone: the rewrites stay under way.
        if exchanged is None:
            return
        for key, why in exchanged.abandoned:
            self._skip(key, why)
        failpoints.reach(f"{self._kind}.settled.before")
        # After the swap: old archives may be deleted only once they are known to be replaced.
        self._leader.append(exchanged.to_proto(commit_id, self._target.topic_id))
        failpoints.reach(f"{self._kind}.settled.after")
        replaced = counted(len(exchanged.replaced), "archive")
        self._progress(
            f"{self._target.topic}: {replaced} in the table, replacing older ones; "
            f"{len(exchanged.abandoned)} given up"
        )


Rewriter = Callable[[Tables, TableTarget, Gaps, str, Callable[[str, str], None]], TableRewriter]
"""`TableRewriter` without its first six arguments, which are the same for every table; the composition root
makes it."""
