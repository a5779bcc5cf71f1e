"""Entries of the intake log about consumer groups."""

from __future__ import annotations

from typing import Any

from archiver.proto import intake_log_pb2 as pb
from intake.log.entries import format_of
from tests.support.intake.intake_entries import topic_id_of


def entry(**body: Any) -> bytes:
    made = pb.IntakeEntry(id=b"i" * 16, **body)
    made.format = format_of(made)
    return made.SerializeToString()


def claimed(*slots: int, node_id: int = 1) -> bytes:
    return entry(slots_claimed=pb.GroupSlotsClaimed(slots=sorted(slots), node_id=node_id, time_us=5))


def committed(time_us: int, *commits: pb.GroupCommit, topics: tuple[int, ...] = (1,)) -> bytes:
    ids = [bytes.fromhex(topic_id_of(number)) for number in topics]
    return entry(offsets_committed=pb.OffsetsCommitted(topic_ids=ids, time_us=time_us, commits=commits))


def commit(group: str, claim: int, topic: int = 0, **rows: int) -> pb.GroupCommit:
    """`p3=7` is offset 7 of partition 3."""
    column = {int(name[1:]): offset for name, offset in rows.items()}
    stated = pb.TopicOffsets(topic=topic, partitions=list(column), offsets=list(column.values()))
    return pb.GroupCommit(group=group, claim=claim, topics=[stated] if rows else [])


def removed(*removals: pb.GroupRemoval, topics: tuple[int, ...] = (1,)) -> bytes:
    ids = [bytes.fromhex(topic_id_of(number)) for number in topics]
    return entry(offsets_removed=pb.OffsetsRemoved(topic_ids=ids, removals=removals))


def opened(name: str, time_us: int = 1) -> bytes:
    return entry(
        producer=pb.ProducerOpened(transactional_id=name, transaction_timeout_us=60_000_000, time_us=time_us)
    )


def held(
    producer: tuple[int, int], commit: pb.GroupCommit, time_us: int = 10, topics: tuple[int, ...] = (1,)
) -> bytes:
    """A commit in a transaction of this producer id and epoch."""
    ids = [bytes.fromhex(topic_id_of(number)) for number in topics]
    return entry(
        offsets_pending=pb.OffsetsPending(
            topic_ids=ids, time_us=time_us, producer_id=producer[0], epoch=producer[1], commit=commit
        )
    )


def ended(producer: tuple[int, int], *, commit: bool, fence: bool = False, time_us: int = 20) -> bytes:
    producer_id, epoch = producer
    return entry(
        transaction=pb.TransactionEnded(
            producer_id=producer_id, epoch=epoch, commit=commit, fence=fence, time_us=time_us
        )
    )
