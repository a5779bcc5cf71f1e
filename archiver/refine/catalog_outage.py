"""Archiving while a catalog is away: what may be written without asking it, and how much.

Pure but for one look at the names of archives. A topic goes on only by what the ledger already knows of its
table: uuid, columns, last sequence number. Its archives stay pending, in order, until the catalog is back;
the bound is on how many. Must never decide anything that only the table can tell: columns and partition specs
that it may lack wait, and so does a table that was never seen. Decision 0024 says why this is safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from archiver.ledger.views import TopicLedger
from archiver.objects.paths import Granularity, data_prefix, parse_archive_key
from archiver.objects.store import ObjectStore
from archiver.refine.plan import Plan
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from archiver.runtime.text import counted
from archiver.schema.evolution.state import TopicSchema


def check_known(
    topic: str, ledger: TopicLedger, schema: TopicSchema, history: Sequence[TopicSchema], away: RetryLater
) -> None:
    """Raise `RetryLater`, with `away` in it, unless archives of that schema may be written without a look at
    the table.

    The table has certainly the columns of the newest version that archives were written with: it was read
    before them.
    """
    if ledger.table_uuid is None or not ledger.written_version:
        raise away
    if schema not in history or schema.version != ledger.written_version:
        raise RetryLater(
            f"{away}; the schema of topic {topic} has changed, and its records wait in intake for the "
            "table's new columns"
        )


def check_granularity(
    topic: str, ledger: TopicLedger, objects: ObjectStore, granularity: Granularity, away: RetryLater
) -> None:
    """Raise `RetryLater`, with `away` in it, unless the table is known to have a partition spec of that
    granularity.

    It has one if the topic has archives of it: before the first of them was written, the table was brought to
    that spec.
    """
    pending = (item.archive.key for item in ledger.pending if item.archive.key)
    stored = (item.key for item in objects.list(data_prefix(ledger.topic_id)))
    known = (parse_archive_key(key) for key in chain(pending, stored))
    if not any(key is not None and key.granularity == granularity for key in known):
        raise RetryLater(
            f"{away}; topic {topic} is to be partitioned by {granularity}, and its records wait in "
            "intake until its table is"
        )


def pending_capacity(ledger: TopicLedger, files_max: int) -> int:
    """How many more archives may wait."""
    return max(0, files_max - sum(not item.archive.gap_only for item in ledger.pending_by_id.values()))


def limit_plans(plans: Sequence[Plan], room_of: dict[str, int]) -> list[Plan]:
    """The plans less those that would go beyond the room of their topic (by name; others have no bound).

    What is left of a partition still begins where its archives end. Partitions share the room evenly.
    """
    in_order = sorted(plans, key=lambda plan: (plan.topic_id, plan.partition, plan.base))
    turns: dict[TopicPartition, int] = defaultdict(int)
    asked: list[tuple[int, int]] = []
    for index, plan in enumerate(in_order):
        tp = (plan.topic_id, plan.partition)
        asked.append((turns[tp], index))
        turns[tp] += 1
    left, taken = dict(room_of), set[int]()
    for _, index in sorted(asked):
        name = in_order[index].topic
        if left.get(name, 1) > 0:
            taken.add(index)
            if name in left:
                left[name] -= 1
    return [plan for index, plan in enumerate(in_order) if index in taken]


def outage_text(ledger: TopicLedger, files_max: int, away: str) -> str:
    """For people: what waits for the table, and why."""
    waiting = [item.archive for item in ledger.pending_by_id.values() if not item.archive.gap_only]
    if not waiting:
        return away
    size = sum(item.size for item in waiting)
    said = (
        f"{away}; {counted(len(waiting), 'archive')} ({size:,} bytes) are written and wait for it, and are "
        "readable as a stream"
    )
    if len(waiting) < files_max:
        return said
    return (
        f"{said}; that is as many as may wait (archive.pending_files_max), so further records stay in "
        "intake until it is back"
    )
