"""Archiving while a catalog is unavailable: what may be written without loading the table, and how much.

Pure, except for one listing of archive names. The topic continues with what the ledger has recorded of its
table: uuid, columns, last sequence number. Its archives stay pending, in order, until the catalog is back;
their number is bounded. All that depends on the table's present state waits: columns or partition specs that
it may lack, and a table that was never loaded. Decision 0024 says why this is safe.
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
    """Raise `RetryLater`, with `away` in it, unless archives of that schema may be written without loading
    the table.

    The table certainly has the columns of the newest version that archives were written with: it was loaded
    before the first of them.
    """
    # A table that was never loaded may not exist, and no columns are known.
    if ledger.table_uuid is None or not ledger.written_version:
        raise away
    # A recorded version without archives may not have reached the table yet.
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

    It has one if the topic has such archives: the table gets the spec before the first of them is written.
    """
    # Pending archives first: they mostly answer, and the listing is then not read.
    pending = (item.archive.key for item in ledger.pending if item.archive.key)
    stored = (item.key for item in objects.list(data_prefix(ledger.topic_id)))
    known = (parse_archive_key(key) for key in chain(pending, stored))
    if not any(key is not None and key.granularity == granularity for key in known):
        raise RetryLater(
            f"{away}; topic {topic} is to be partitioned by {granularity}, and its records wait in "
            "intake until its table is"
        )


def pending_capacity(ledger: TopicLedger, files_max: int) -> int:
    """How many more archives may be pending."""
    return max(0, files_max - sum(not item.archive.gap_only for item in ledger.pending_by_id.values()))


def limit_plans(plans: Sequence[Plan], room_of: dict[str, int]) -> list[Plan]:
    """The plans without those that exceed the capacity of their topic (by name; other topics have no bound).

    The remaining plans of a partition still begin where its archives end. Partitions share the capacity
    evenly.
    """
    # By turns: the first plan of every partition, then the second, until the capacity is used.
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
        # A dropped plan drops the later ones of its partition too, so no hole arises.
        if left.get(name, 1) > 0:
            taken.add(index)
            if name in left:
                left[name] -= 1
    return [plan for index, plan in enumerate(in_order) if index in taken]


def outage_text(ledger: TopicLedger, files_max: int, away: str) -> str:
    """For people: what is pending for the table, and why."""
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
