"""What holds one topic partition back: one sentence, the worst first, with what to do.

Pure. Owns the order of severity and the words. When an archive is due is asked of the planner's own triggers,
so that this can never say another thing than the next round does.
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
"""The worst first. restored: the archives reach beyond the log · shelf: one is damaged or gone · unreadable:
shelves cannot be read at the moment · stuck: the last round could not finish the topic · unconfigured:
nothing archives the topic · transaction: one is open · pending: archives are in no table yet · off:
`min_bytes: -1` · due: the next round takes it · waiting: not due yet."""

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
"""What does the work. Nobody may be there who begins one by himself: `status` and `explain` are told to
people without a daemon, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the reason is made from."""

    intake: Backlog
    tp: TopicPartition
    topic: str
    stable: int
    archived: int | None
    """None: the topic's records stay in intake."""
    committed: int | None
    unread: ArchiverError | None
    """Why some of the partition's lag cannot be told."""
    stuck: str | None
    transaction: HeldBack | None
    written_us: int
    configured: bool
    triggers: ArchiveSettings
    now_us: int


def reason_of(held: Held) -> tuple[Cause | None, str | None]:
    """What holds the partition back, the worst if there are several; (None, None) if nothing does."""
    archived, committed = held.archived, held.committed
    if archived is not None and archived > held.stable:
        return "restored", (
            f"it is archived up to offset {archived}, but the intake log ends at {held.stable}: the "
            "metadata store is older than the "
            "archives (a restored copy?); put the newest one back"
        )
    if isinstance(held.unread, RetryLater):
        return (
            "unreadable",
            f"its shelves cannot be read at the moment, and are tried again by themselves: {held.unread}",
        )
    if held.unread is not None:
        return "shelf", f"a shelf that holds some of it cannot be read: {held.unread}"
    behind = committed is not None and committed < held.stable
    if behind and held.stuck is not None:
        return "stuck", f"the last round could not finish the topic: {held.stuck}"
    if behind and not held.configured:
        told = (
            f"the configuration has no topic {held.topic}, so nothing archives it; put the topic back into it"
        )
        return (
            "unconfigured",
            told
            if archived
            else f"{told} (it was never archived: if its records were to stay in intake, nothing is amiss)",
        )
    if held.transaction is not None:
        return "transaction", _transaction(held, held.transaction)
    if archived is None or committed is None or not behind:
        return None, None
    if committed < archived:
        return "pending", (f"archives up to offset {archived} are in no table yet; {NEXT_ROUND} commits them")
    return _trigger(held, archived)


def _transaction(held: Held, transaction: HeldBack) -> str:
    waiting = counted(transaction.waiting, "offset waits", "offsets wait")
    told = (
        f"{waiting} for transaction {transaction.transactional_id} (producer "
        f"{transaction.producer_id}, epoch {transaction.epoch}), open "
        f"since {moment(transaction.since_us)} ({age_at(transaction.since_us, held.now_us)})"
    )
    if transaction.deadline_us <= held.now_us:
        return (
            f"{told}; its time was over at {moment(transaction.deadline_us)}, and a running writer or the "
            "next round aborts it"
        )
    return f"{told}; let its producer end it, or it is aborted at {moment(transaction.deadline_us)}"


def _trigger(held: Held, archived: int) -> tuple[Cause, str]:
    """What is stable and in no archive: which trigger it waits for, and when that comes."""
    by_hand = f"`archiver archive --topic {held.topic} --all` does it at once"
    try:
        backlog = held.intake.summary(held.tp, archived, held.stable)
    except ArchiverError as error:
        return (
            "unreadable" if isinstance(error, RetryLater) else "shelf"
        ), f"a shelf that holds some of it cannot be read: {error}"
    triggers, now_us = held.triggers, held.now_us
    if triggers.min_bytes == NEVER:
        return "off", f"archiving is switched off (archive.min_bytes: -1); {by_hand}"
    if backlog.rows == 0:
        if gaps_due(held.written_us, now_us, triggers):
            return "due", f"nothing but aborted records, which {NEXT_ROUND} passes over; {by_hand}"
        by_us = held.written_us + round(triggers.complete_delay_max * 1e6)
        return (
            "waiting",
            (
                "nothing but aborted records, passed over with the topic's next archive, at the latest at "
                f"{moment(by_us)}"
            ),
        )
    opened = partial(opened_at_us, held.intake, held.tp, archived, held.stable, backlog, triggers.min_bytes)
    if not is_open(backlog, triggers):
        return (
            "waiting",
            (
                f"not due: {backlog.bytes:,} bytes of the {triggers.min_bytes:,} from which it is "
                f"archived; {by_hand}"
            ),
        )
    if is_due(backlog, opened, now_us, triggers):
        them = "it" if backlog.rows == 1 else "them"
        return "due", f"due: {counted(backlog.rows, 'record')}, and {NEXT_ROUND} takes {them}; {by_hand}"
    return "waiting", f"not due yet: {_when(backlog, opened(), triggers)}; {by_hand}"


def _when(backlog: BacklogSummary, opened_us: int, triggers: ArchiveSettings) -> str:
    quiet_us = backlog.newest_us + round(triggers.idle_max * 1e6)
    open_us = opened_us + round(triggers.complete_delay_max * 1e6)
    if quiet_us <= open_us:
        return (
            f"archived at {moment(quiet_us)} if nothing comes before (archive.idle_max), at the latest at "
            f"{moment(open_us)}"
        )
    return f"archived at {moment(open_us)} (archive.complete_delay_max)"
