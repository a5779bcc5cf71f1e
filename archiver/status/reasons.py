"""The reason that holds one topic partition back: one sentence with what to do; the worst reason wins.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from archiver.config.topics import ArchiveSettings
from archiver.publish.progress import HeldBack
from archiver.refine.planner import opened_at_us
from archiver.refine.triggers import NEVER, gaps_due, is_due, is_open
from archiver.runtime.errors import ArchiverError, RetryLater
from archiver.runtime.ids import TopicPartition
from archiver.runtime.text import counted, moment
from archiver.status.ages import age_at
from intake.log.backlog import Backlog, BacklogSummary

Cause = Literal[
    "restored",
    "shelf",
    "unreadable",
    "stuck",
    "unconfigured",
    "transaction",
    "pending",
    "off",
    "due",
    "waiting",
]
"""The worst first. restored: the archives reach beyond the log · shelf: a history file is damaged or missing
· unreadable: a history file cannot be read at the moment · stuck: the last round could not finish the topic ·
unconfigured: nothing archives the topic · transaction: one is open · pending: archives are not in the table
yet · off: `min_bytes: -1` · due: the next round archives it · waiting: not due yet."""

CAUSES: tuple[Cause, ...] = (
    "restored",
    "shelf",
    "unreadable",
    "stuck",
    "unconfigured",
    "transaction",
    "pending",
    "off",
    "due",
    "waiting",
)
"""The worst first."""

NEXT_ROUND = "the next round (`archiver serve`, or `archiver archive`)"
"""Names both ways to start a round, because `status` and `explain` also work without a daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """State from which the reason follows."""

    intake: Backlog
    tp: TopicPartition
    topic: str
    stable: int
    archived: int | None
    """None: the topic's records stay in intake."""
    committed: int | None
    unread: ArchiverError | None
    """Why some of the partition's lag is unknown."""
    stuck: str | None
    transaction: HeldBack | None
    written_us: int
    configured: bool
    triggers: ArchiveSettings
    now_us: int


def reason_of(held: Held) -> tuple[Cause | None, str | None]:
    """What holds the partition back, the worst of several reasons; (None, None) if nothing does."""
    archived, committed = held.archived, held.committed
    # Offsets never decrease, so archives beyond the log mean that the log is older than they are.
    if archived is not None and archived > held.stable:
        return "restored", (
            f"it is archived up to offset {archived}, but the intake log ends at {held.stable}: the "
            "metadata store is older than the "
            "archives (a restored copy?); restore the newest copy of it"
        )
    # Temporary, so it is separate from a damaged file, which needs a copy.
    if isinstance(held.unread, RetryLater):
        return (
            "unreadable",
            f"a history file cannot be read at the moment, and reading it is retried: {held.unread}",
        )
    if held.unread is not None:
        return "shelf", f"a history file that has some of it cannot be read: {held.unread}"
    # A partition that is level is not held back, also of a halted topic.
    behind = committed is not None and committed < held.stable
    if behind and held.stuck is not None:
        return "stuck", f"the last round could not finish the topic: {held.stuck}"
    if behind and not held.configured:
        why = (
            f"topic {held.topic} is not configured, so nothing archives it; add it to `topics` in "
            "archiver.yaml again"
        )
        return (
            "unconfigured",
            why
            if archived
            else f"{why} (it was never archived: if its records are to stay in intake, nothing is wrong)",
        )
    # After the causes that an operator must fix: those remain when the transaction ends.
    if held.transaction is not None:
        return "transaction", _transaction(held, held.transaction)
    if archived is None or committed is None or not behind:
        return None, None
    # Before the triggers: the next round commits pending archives, due or not.
    if committed < archived:
        return "pending", (
            f"archives up to offset {archived} are not in the table yet; {NEXT_ROUND} commits them"
        )
    return _trigger(held, archived)


def _transaction(held: Held, transaction: HeldBack) -> str:
    waiting = counted(transaction.waiting, "offset waits", "offsets wait")
    why = (
        f"{waiting} for transaction {transaction.transactional_id} (producer "
        f"{transaction.producer_id}, epoch {transaction.epoch}), open "
        f"since {moment(transaction.since_us)} ({age_at(transaction.since_us, held.now_us)})"
    )
    # Nothing aborts it by itself: an entry in the log does, and a process must write it.
    if transaction.deadline_us <= held.now_us:
        return (
            f"{why}; it timed out at {moment(transaction.deadline_us)}, and a running writer or the "
            "next round aborts it"
        )
    return f"{why}; let its producer end it, or it is aborted at {moment(transaction.deadline_us)}"


def _trigger(held: Held, archived: int) -> tuple[Cause, str]:
    """Which trigger stable records without an archive wait for, and when it fires."""
    by_hand = f"`archiver archive --topic {held.topic} --all` does it at once"
    try:
        # May read a history file, as the lag did.
        backlog = held.intake.summary(held.tp, archived, held.stable)
    except ArchiverError as error:
        return (
            "unreadable" if isinstance(error, RetryLater) else "shelf"
        ), f"a history file that has some of it cannot be read: {error}"
    triggers, now_us = held.triggers, held.now_us
    if triggers.min_bytes == NEVER:
        return "off", f"archiving is switched off (`archive.min_bytes: -1`); {by_hand}"
    # Offsets of aborted transactions alone have no bytes, so `min_bytes` never opens them.
    if backlog.rows == 0:
        if gaps_due(held.written_us, now_us, triggers):
            return "due", f"only aborted records, which {NEXT_ROUND} skips; {by_hand}"
        by_us = held.written_us + round(triggers.complete_delay_max * 1e6)
        return (
            "waiting",
            (
                "only aborted records, skipped with the topic's next archive, at the latest at "
                f"{moment(by_us)}"
            ),
        )
    # A function, because the time of opening can need a history file and is seldom needed.
    opened = partial(opened_at_us, held.intake, held.tp, archived, held.stable, backlog, triggers.min_bytes)
    if not is_open(backlog, triggers):
        return (
            "waiting",
            (f"not due: {backlog.bytes:,} of {triggers.min_bytes:,} bytes (archive.min_bytes); {by_hand}"),
        )
    # The planner's own triggers, so that the text agrees with the next round.
    if is_due(backlog, opened, now_us, triggers):
        # Without a number, which the lag has: so all partitions that are due have the same text.
        return "due", f"due: {NEXT_ROUND} archives it"
    return "waiting", f"not due yet: {_when(backlog, opened(), triggers)}; {by_hand}"


def _when(backlog: BacklogSummary, opened_us: int, triggers: ArchiveSettings) -> str:
    quiet_us = backlog.newest_us + round(triggers.idle_max * 1e6)
    open_us = opened_us + round(triggers.complete_delay_max * 1e6)
    # Each new record moves the first time, but never beyond the second.
    if quiet_us <= open_us:
        return (
            f"archived at {moment(quiet_us)} if no record arrives before (archive.idle_max), at the "
            "latest at "
            f"{moment(open_us)}"
        )
    return f"archived at {moment(open_us)} (archive.complete_delay_max)"
