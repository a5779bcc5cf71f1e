"""Replaces archives in a table by rewritten ones, for replay and compaction.

It follows the commit protocol (rules C1, C3 to C6). To the rest of the protocol such a snapshot is a
compaction. Promises that one snapshot removes the old files and adds the new one, so no snapshot has an
offset twice or not at all. A path is offered only if it certainly was never in the table (rule P2). The
caller must write the result into the ledger.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from archiver.catalog.assessment import unbroken_since
from archiver.catalog.commit import Committer
from archiver.catalog.evidence import Gaps, no_gaps
from archiver.catalog.identity import TableTarget
from archiver.catalog.swap_retry import Attempt, CommitLimits, Done, NotApplied, Request, retry_swap
from archiver.catalog.table_layout import COMMIT_ID, COMPACTED, REPLAYED
from archiver.catalog.tables import Prepared, Tables, TableView, shown
from archiver.events.types import DataFile
from archiver.ledger.archives import Rewrite, Rewrites
from archiver.ledger.leader import Leader
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, RetryLater, TopicHalted
from archiver.runtime.ids import TopicId
from archiver.runtime.text import counted

SUMMARY_KEYS = {"replay": REPLAYED, "compact": COMPACTED}
"""Reason of the rewrite → summary key under which a snapshot states how many archives it added."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A rewrite that is offered to the catalog."""

    rewrite: Rewrite
    old_paths: tuple[str, ...]
    """The old files, as the table names them."""
    data_file: DataFile
    """The table's entry for the new file."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on the rewrites of a topic, from one view of its table."""

    replaced: tuple[str, ...]
    """Keys of new archives that the table has."""
    offered: tuple[Exchange, ...]
    abandoned: tuple[tuple[str, str], ...]
    """Keys of new archives that are not offered (any more), with the reason."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result for the ledger entry REWRITE_SETTLED."""

    sequence_number: int
    replaced: tuple[str, ...]
    abandoned: tuple[tuple[str, str], ...]
    snapshot_id: int | None = None
    """The snapshot that this call committed."""

    def to_proto(self, commit_id: uuid.UUID, topic_id: TopicId) -> pb.RewriteSettled:
        """The body of the ledger entry."""
        return pb.RewriteSettled(
            commit_id=commit_id.bytes,
            topic_id=bytes.fromhex(topic_id),
            sequence_number=self.sequence_number,
            replaced=self.replaced,
            abandoned=[pb.RewriteSettled.Abandoned(key=key, why=why) for key, why in self.abandoned],
        )


@dataclass(frozen=True, slots=True)
class TableContent:
    """The part of a table that a verdict needs."""

    uuid: uuid.UUID
    unbroken_since: int
    """From this sequence number on, every commit is a retained ancestor of the current snapshot."""
    paths: Collection[str] = field(default=())
    """Added by some snapshot of the lineage since the oldest rewrite was written, or live."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Live paths (those that matter) and their partition spec."""
    spec_id: int = 0
    has_deletes: bool = False


def judge_rewrites(
    rewrites: Rewrites, exchanges: Mapping[str, Exchange], uri: Callable[[str], str], content: TableContent
) -> Verdicts:
    """One verdict for each rewrite that is under way, and the abandoned ones that are in the table
    nevertheless. Pure.

    `exchanges` are those of this run by new key. A rewrite of an earlier run is not offered again, but
    repeated.
    """
    # A late request may have applied a rewrite that was given up. Then the ledger must name the new files.
    replaced: list[str] = [key for key in rewrites.abandoned if uri(key) in content.live]
    offered: list[Exchange] = []
    abandoned: list[tuple[str, str]] = []
    for key, rewrite in rewrites.under_way.items():
        exchange = exchanges.get(key)
        if uri(key) in content.paths:
            # The path decides first: this swap may have been applied although its reply was lost.
            replaced.append(key)
            continue
        why = _objection(rewrite, exchange, content)
        if why is None and exchange is not None:
            offered.append(exchange)
        else:
            abandoned.append((key, why or ""))
    return Verdicts(tuple(replaced), tuple(offered), tuple(abandoned))


def _objection(rewrite: Rewrite, exchange: Exchange | None, content: TableContent) -> str | None:
    if exchange is None:
        # Not offered again: this process has no data file entry for it, and a repetition gets a new path.
        return "the run that made it ended before the table had it"
    # With a gap in the history an absent path proves nothing (rule P2).
    if rewrite.table_uuid != content.uuid or rewrite.last_sequence_number < content.unbroken_since:
        return f"the table's history since sequence number {rewrite.last_sequence_number} is not complete"
    # Another writer moved the rows to a file of its own. Adding the rewrite would double them.
    if any(path not in content.live for path in exchange.old_paths):
        return "the old file is not in the table any more: another writer compacted or removed it"
    # pyiceberg writes added and removed entries under the default spec.
    if {exchange.data_file.spec_id, *(content.live[path] for path in exchange.old_paths)} != {
        content.spec_id
    }:
        return "the old file was written for another partition spec than the table has now"
    # Position deletes name rows by path, so in a new file the deleted rows would return.
    if content.has_deletes:
        return "the table has delete files of another writer, which may name rows of the old file"
    return None


class FileReplacer:
    """Exchanges data files of the tables of one catalog, on behalf of one leader."""

    def __init__(
        self,
        tables: Tables,
        committer: Committer,
        leader: Leader,
        limits: CommitLimits,
        clock: Clock,
        uri: Callable[[str], str],
        kind: str = "replay",
    ) -> None:
        """`committer` assesses the table; `uri` gives the path under which the table names an object key;
        `kind`, a key of `SUMMARY_KEYS`, is the reason of the rewrite.
        """
        self._tables = tables
        self._committer = committer
        self._leader = leader
        self._limits = limits
        self._clock = clock
        self._uri = uri
        self._kind = kind

    def exchange(
        self, target: TableTarget, exchanges: Sequence[Exchange], commit_id: uuid.UUID, gaps: Gaps = no_gaps
    ) -> Exchanged | None:
        """Apply the exchanges with one snapshot, and return the outcome of earlier rewrites as well; None if
        there is none.

        Every exchange must be under way in the ledger. Raises `Deposed`; `TopicHalted` if an operator must
        act; `RetryLater` if nothing was exchanged within the bounds; `OutcomeUnknown` if the last request may
        still be applied. In each case they stay under way, and a later run checks them.
        """
        by_key = {item.rewrite.archive.key: item for item in exchanges}
        # The newest request of this call, to recognise its snapshot in a later load.
        last: Prepared | None = None

        def step(attempt: Attempt) -> Done[Exchanged | None] | Request[Exchanged | None] | RetryLater | None:
            nonlocal last
            try:
                view = self._committer.sound(target, gaps)
                if view is None:
                    return Done(None)
                attempt.loaded(view)
                # Also after an applied swap: only the table shows the outcome (rule C6).
                verdicts = self._verdicts(target, view, by_key)
                if not verdicts.offered:
                    return Done(_seen(view, verdicts, last))
                if attempt.is_last:
                    return None
                prepared = last = self._prepare(target, view, verdicts, commit_id)
            except RetryLater as error:
                return error
            # The reply confirms nothing: the next load shows the outcome of every rewrite, this one included.
            return Request(lambda: self._tables.swap(prepared), f"{self._kind}.swap", prepared)

        result = retry_swap(step, self._leader.check, self._limits, self._clock, load_after_last=True)
        if not isinstance(result, NotApplied):
            return result
        tried = f"after {counted(self._limits.attempts_max, 'attempt')} or {self._limits.timeout_s:g} s"
        why = result.why or "the table does not show it"
        message = f"table {shown(target.identifier)}: archives were not exchanged {tried} ({why})"
        raise result.error(
            f"{message}; the last request may still land, the next run checks the table"
            if result.is_open
            else f"{message}; the next run goes on"
        )

    def _verdicts(self, target: TableTarget, view: TableView, exchanges: Mapping[str, Exchange]) -> Verdicts:
        rewrites = self._leader.fold.topic(target.topic_id).rewrites
        # The oldest token: no file of these rewrites can have entered the table before it.
        since = min(
            (item.last_sequence_number for item in rewrites.under_way.values()), default=view.sequence_number
        )
        added = self._tables.data_paths(view, since) if since < view.sequence_number else frozenset[str]()
        relevant = {path for item in exchanges.values() for path in item.old_paths} | {
            self._uri(key) for key in (*rewrites.under_way, *rewrites.abandoned)
        }
        # A large table has many live files, so only relevant paths are kept in memory.
        live: dict[str, int] = {}
        has_deletes = False
        for file in self._tables.live_files(view):
            has_deletes |= file.has_deletes
            if file.path in relevant:
                live[file.path] = file.spec_id
        content = TableContent(
            view.uuid, unbroken_since(view), added | live.keys(), live, view.spec_id, has_deletes
        )
        return judge_rewrites(rewrites, exchanges, self._uri, content)

    def _prepare(
        self, target: TableTarget, view: TableView, verdicts: Verdicts, commit_id: uuid.UUID
    ) -> Prepared:
        # No table property is set. The evidence stays with our newest commit, which is an ancestor.
        removed = {path for item in verdicts.offered for path in item.old_paths}
        added = [item.data_file for item in verdicts.offered]
        try:
            return self._tables.prepare_exchange(
                view, removed, added, {COMMIT_ID: str(commit_id), SUMMARY_KEYS[self._kind]: str(len(added))}
            )
        except Halt as error:
            raise TopicHalted(target.topic, str(error)) from error


def _seen(view: TableView, verdicts: Verdicts, last: Prepared | None) -> Exchanged | None:
    if not verdicts.replaced and not verdicts.abandoned:
        return None
    # An earlier process or a compaction may have brought the files, so the snapshot is named only if it is
    # ours.
    made = last is not None and any(item.snapshot_id == last.snapshot_id for item in view.lineage())
    return Exchanged(
        view.sequence_number,
        verdicts.replaced,
        verdicts.abandoned,
        last.snapshot_id if made and last is not None else None,
    )
