"""Puts archives that were made anew, each of one or of several, in the place of the old ones: the second, and
only other, writer of tables.

The loop is the one of `commit.py` (protocol rules C1, C3 to C6): load, judge the evidence, choose, prepare,
read the log's tail, swap; and from the start again, also after a swap that was applied, because only the
table knows. For the rest of the protocol such a snapshot is what a compaction is: rows keep their
coordinates, the evidence property stays with our newest commit, which is an ancestor, and watermarks do not
move. Promises that old files leave and their successor comes in one snapshot, so that no snapshot has an
offset twice or not at all, and that a path is offered only while it certainly was never in the table (rule
P2). The caller writes what comes back into the ledger.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from archiver.catalog.commit import Committer
from archiver.catalog.commit_selection import unbroken_since
from archiver.catalog.evidence import Gaps, no_gaps
from archiver.catalog.identity import TableTarget
from archiver.catalog.swap import Attempt, CommitLimits, Done, NotApplied, Request, retry_swap
from archiver.catalog.table_layout import COMMIT_ID, COMPACTED, REPLAYED
from archiver.catalog.tables import Prepared, Tables, TableView, shown
from archiver.events.types import DataFile
from archiver.ledger.leader import Leader
from archiver.ledger.rewrites import Rewrite, Rewrites
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, RetryLater, TopicHalted
from archiver.runtime.ids import TopicId
from archiver.runtime.text import counted

TOLD_AS = {"replay": REPLAYED, "compact": COMPACTED}
"""By what archives were made anew for: where the summary of a snapshot tells how many of them it brought."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A rewrite of which the catalog is told."""

    rewrite: Rewrite
    old_paths: tuple[str, ...]
    """As the table names the old files."""
    data_file: DataFile
    """What it is told about the new one."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a look at the table says of the rewrites of a topic."""

    replaced: tuple[str, ...]
    """Keys of new archives that the table has."""
    offered: tuple[Exchange, ...]
    abandoned: tuple[tuple[str, str], ...]
    """Keys of new archives that are not offered (any more), with the reason."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a leader learned, to be written into the ledger as REWRITE_SETTLED."""

    sequence_number: int
    replaced: tuple[str, ...]
    abandoned: tuple[tuple[str, str], ...]
    snapshot_id: int | None = None
    """Of the snapshot that an exchange of this call made."""

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
class Sight:
    """What of a table matters for a verdict."""

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
    rewrites: Rewrites, exchanges: Mapping[str, Exchange], uri: Callable[[str], str], sight: Sight
) -> Verdicts:
    """One verdict for each rewrite that is under way, and the abandoned ones that are in the table all the
    same. Pure.

    `exchanges` are those of this run by new key: what an earlier one left is not offered again, but made
    anew.
    """
    replaced: list[str] = [key for key in rewrites.abandoned if uri(key) in sight.live]
    offered: list[Exchange] = []
    abandoned: list[tuple[str, str]] = []
    for key, rewrite in rewrites.under_way.items():
        exchange = exchanges.get(key)
        if uri(key) in sight.paths:
            replaced.append(key)
            continue
        why = _objection(rewrite, exchange, sight)
        if why is None and exchange is not None:
            offered.append(exchange)
        else:
            abandoned.append((key, why or ""))
    return Verdicts(tuple(replaced), tuple(offered), tuple(abandoned))


def _objection(rewrite: Rewrite, exchange: Exchange | None, sight: Sight) -> str | None:
    if exchange is None:
        return "the run that made it ended before the table had it"
    if rewrite.table_uuid != sight.uuid or rewrite.last_sequence_number < sight.unbroken_since:
        return f"the table's history since sequence number {rewrite.last_sequence_number} is not complete"
    if any(path not in sight.live for path in exchange.old_paths):
        return "the old file is not in the table any more: somebody compacted or removed it meanwhile"
    if {exchange.data_file.spec_id, *(sight.live[path] for path in exchange.old_paths)} != {sight.spec_id}:
        return "the old file was written for another partition spec than the table has now"
    if sight.has_deletes:
        return "the table has delete files of somebody else, which name rows of the old file"
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
        """`committer` judges the table; `uri` gives the path under which the table names an object key;
        `kind`, one of `TOLD_AS`, is what the archives were made anew for.
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
        """Bring the exchanges into the table with one snapshot, and say what became of earlier rewrites; None
        if there is nothing to say.

        Every exchange must be under way in the ledger. Raises `Deposed`; `TopicHalted` if somebody must act;
        `RetryLater` if nothing was exchanged within the bounds; `OutcomeUnknown` if the last request may
        still land. In each case they stay under way and a later run looks.
        """
        by_key = {item.rewrite.archive.key: item for item in exchanges}
        last: Prepared | None = None

        def step(attempt: Attempt) -> Done[Exchanged | None] | Request[Exchanged | None] | RetryLater | None:
            nonlocal last
            try:
                view = self._committer.sound(target, gaps)
                if view is None:
                    return Done(None)
                attempt.loaded(view)
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
        since = min(
            (item.last_sequence_number for item in rewrites.under_way.values()), default=view.sequence_number
        )
        added = self._tables.data_paths(view, since) if since < view.sequence_number else frozenset[str]()
        wanted = {path for item in exchanges.values() for path in item.old_paths} | {
            self._uri(key) for key in (*rewrites.under_way, *rewrites.abandoned)
        }
        live: dict[str, int] = {}
        has_deletes = False
        for file in self._tables.live_files(view):
            has_deletes |= file.has_deletes
            if file.path in wanted:
                live[file.path] = file.spec_id
        sight = Sight(view.uuid, unbroken_since(view), added | live.keys(), live, view.spec_id, has_deletes)
        return judge_rewrites(rewrites, exchanges, self._uri, sight)

    def _prepare(
        self, target: TableTarget, view: TableView, verdicts: Verdicts, commit_id: uuid.UUID
    ) -> Prepared:
        removed = {path for item in verdicts.offered for path in item.old_paths}
        added = [item.data_file for item in verdicts.offered]
        try:
            return self._tables.prepare_exchange(
                view, removed, added, {COMMIT_ID: str(commit_id), TOLD_AS[self._kind]: str(len(added))}
            )
        except Halt as error:
            raise TopicHalted(target.topic, str(error)) from error


def _seen(view: TableView, verdicts: Verdicts, last: Prepared | None) -> Exchanged | None:
    if not verdicts.replaced and not verdicts.abandoned:
        return None
    made = last is not None and any(item.snapshot_id == last.snapshot_id for item in view.lineage())
    return Exchanged(
        view.sequence_number,
        verdicts.replaced,
        verdicts.abandoned,
        last.snapshot_id if made and last is not None else None,
    )
