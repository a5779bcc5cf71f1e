"""The end of a run: what is in the log and the files is compared with what was sent and answered.

Offsets, transactions and ingest times are computed here independently, from the entries and the files, as far
as that is possible without a fold. Each invariant has a name.
"""

from __future__ import annotations

from dataclasses import dataclass

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import NotFound
from archiver.runtime.ids import TopicPartition
from intake.log.fold import IntakeFold
from tests.simulation.book import Book, Sent, Transaction
from tests.simulation.checkpoint_verdict import judge_checkpoints
from tests.simulation.files import Files
from tests.simulation.ground import Ground
from tests.simulation.readers import Sightings
from tests.simulation.schedule import Violation


@dataclass(frozen=True)
class Found:
    """A record as the world has it."""

    offset: int
    value: bytes
    accept_us: int
    ingest_us: int
    log_index: int


def judge(ground: Ground, book: Book, files: Files, sightings: Sightings) -> dict[str, int]:
    """Raise `Violation` unless everything holds; returns counts of what was checked."""
    fold = IntakeFold()
    for index, data in enumerate(ground.entries):
        fold.apply(index, data)
    checkpoints = judge_checkpoints(ground, fold)
    if len(fold.transactions):
        raise Violation(
            "nobody is stuck",
            f"transactions are open in the end: {[one.transactional_id for one in fold.transactions]}",
        )
    found = {tp: _records(ground, fold, files, tp) for tp in ground.partitions()}
    ticks = _ticks(ground)
    for tp, records in found.items():
        _judge_offsets(fold, tp, records)
        _judge_times(ticks, tp, records)
        _judge_order(book, tp, records)
    places = _judge_presence(book, found)
    for transaction in book.transactions:
        _judge_transaction(transaction, places)
    for (tp, offset), value in sightings.values.items():
        if places.get(value) != (tp, offset):
            raise Violation(
                "what was read stays",
                f"{value!r} was read at {tp} {offset} and is now at {places.get(value)}",
            )
    gaps = sum(end - start for tp in found for start, end in fold.gaps(tp, 0, fold.next_offset(tp)))
    return {
        "records": len(places),
        "gaps": gaps,
        "entries": len(ground.entries),
        "sightings": len(sightings.values),
        "checkpoints": checkpoints,
    }


def _records(ground: Ground, fold: IntakeFold, files: Files, tp: TopicPartition) -> list[Found]:
    records: list[Found] = []
    for segment in fold.segments(tp):
        if segment.end > ground.watermarks.get(tp, 0) and ground.objects.info(segment.file.key) is None:
            raise Violation("a named file exists", f"{tp} {segment.base}: {segment.file.key} is gone")
        try:
            rows = files.rows(segment)
        except NotFound as error:
            raise Violation(
                "a named file exists", f"{tp} {segment.base}: {segment.file.key} is gone"
            ) from error
        if len(rows) != segment.rows:
            raise Violation(
                "a file holds what its entry says",
                f"{segment.file.key} has {len(rows)} of {segment.rows} rows",
            )
        ingest_us = segment.floor_us
        for place, (value, accept_us) in enumerate(rows):
            ingest_us = max(ingest_us, accept_us)
            records.append(Found(segment.base + place, value, accept_us, ingest_us, segment.file.log_index))
    return records


def _judge_offsets(fold: IntakeFold, tp: TopicPartition, records: list[Found]) -> None:
    gaps = {offset for start, end in fold.gaps(tp, 0, fold.next_offset(tp)) for offset in range(start, end)}
    offsets = [record.offset for record in records]
    if sorted([*offsets, *gaps]) != list(range(fold.next_offset(tp))) or offsets != sorted(offsets):
        raise Violation(
            "offsets are dense but for gaps",
            f"{tp} has {offsets}, gaps {sorted(gaps)}, and ends at {fold.next_offset(tp)}",
        )


def _ticks(ground: Ground) -> list[int]:
    """Per index of the log, the newest tick before it."""
    ticks, newest_us = [], 0
    for data in ground.entries:
        ticks.append(newest_us)
        newest_us = max(newest_us, pb.IntakeEntry.FromString(data).tick.time_us)
    return ticks


def _judge_times(ticks: list[int], tp: TopicPartition, records: list[Found]) -> None:
    """Ingest times never go back, are never before a tick that stands earlier, and never before the record
    was accepted."""
    newest_us = 0
    for record in records:
        newest_us = max(newest_us, record.accept_us, ticks[record.log_index])
        if record.ingest_us < newest_us:
            raise Violation(
                "ingest times never go back",
                f"{tp} {record.offset} is of {record.ingest_us}, after {newest_us}",
            )
        newest_us = record.ingest_us


def _judge_order(book: Book, tp: TopicPartition, records: list[Found]) -> None:
    newest: dict[str, int] = {}
    for record in records:
        sent = _sent(book, tp, record)
        if sent.place <= newest.get(sent.stream, -1):
            raise Violation(
                "a sender's records keep their order",
                f"{sent.value!r} comes after place {newest[sent.stream]} of its stream",
            )
        newest[sent.stream] = sent.place


def _sent(book: Book, tp: TopicPartition, record: Found) -> Sent:
    sent = book.sent.get(record.value)
    if sent is None or sent.tp != tp:
        raise Violation("only what was sent is there", f"{tp} {record.offset} holds {record.value!r}")
    return sent


def _judge_presence(
    book: Book, found: dict[TopicPartition, list[Found]]
) -> dict[bytes, tuple[TopicPartition, int]]:
    """Where each record is. Acknowledged ones are where they were acknowledged, failed ones nowhere, none is
    there twice."""
    places: dict[bytes, tuple[TopicPartition, int]] = {}
    for tp, records in found.items():
        for record in records:
            if record.value in places:
                raise Violation(
                    "nothing is there twice",
                    f"{record.value!r} is at {places[record.value]} and at {tp} {record.offset}",
                )
            places[record.value] = (tp, record.offset)
    taken = set(places.values())
    for sent in book.sent.values():
        place = places.get(sent.value)
        if sent.offset is not None and place is None and (sent.tp, sent.offset) in taken:
            raise Violation(
                "an offset is given once",
                f"{sent.value!r} was acknowledged at {sent.offset}, where another record is",
            )
        if sent.transaction is not None and sent.transaction.fate != "committed":
            continue
        if sent.offset is not None and place != (sent.tp, sent.offset):
            raise Violation(
                "what is acknowledged is there",
                f"{sent.value!r} was acknowledged at {sent.offset} and is at {place}",
            )
        if sent.is_there and place is None:
            raise Violation(
                "what is acknowledged is there", f"{sent.value!r} was said to be there and is nowhere"
            )
        if place is not None and sent.offset is None and not sent.is_there and sent.open_attempts == 0:
            raise Violation("what failed is absent", f"{sent.value!r} is at {place}, every attempt failed")
    return places


def _judge_transaction(transaction: Transaction, places: dict[bytes, tuple[TopicPartition, int]]) -> None:
    seen = [sent for sent in transaction.records if sent.value in places]
    if transaction.fate == "committed":
        missing = [sent.value for sent in transaction.records if sent.value not in places]
        if missing:
            raise Violation("a committed transaction is complete", f"{transaction.name} lacks {missing}")
    elif transaction.fate == "unknown":
        if seen and len(seen) != len(transaction.records):
            raise Violation(
                "a transaction is all or nothing",
                f"{transaction.name} has {len(seen)} of {len(transaction.records)} records",
            )
        moved = [
            sent for sent in seen if sent.offset is not None and places[sent.value] != (sent.tp, sent.offset)
        ]
        if moved:
            raise Violation(
                "what is acknowledged is there", f"{moved[0].value!r} was acknowledged at {moved[0].offset}"
            )
    elif seen:
        raise Violation(
            "what is not committed is never seen",
            f"{transaction.name} is {transaction.fate} and {seen[0].value!r} is there",
        )
