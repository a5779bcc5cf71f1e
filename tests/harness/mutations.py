"""Mistakes a product could make, played on a good history: the judge must find each by exactly the invariant
it breaks.

A mutation changes everything that the mistake would change, and nothing else: a lost record is missing from
topic and table alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from tests.harness.history import (
    Attempt,
    Fetched,
    GroupReading,
    History,
    MirrorReading,
    Place,
    Processed,
    Row,
    TableReading,
    Transaction,
)

_T = TypeVar("_T")
Mutation = Callable[[History, random.Random], History]

MUTATIONS: dict[str, tuple[str, Mutation]] = {}
"""Name to the invariant it breaks and the function."""

FAR = 1000
"""More offsets than a history has open ends."""


class NotApplicable(Exception):
    """This history has nothing that could go wrong in this way."""


def breaks(invariant: str) -> Callable[[Mutation], Mutation]:
    """Register a mistake that breaks this invariant and no other."""

    def register(mutation: Mutation) -> Mutation:
        MUTATIONS[mutation.__name__] = (invariant, mutation)
        return mutation

    return register


def choose(rng: random.Random, candidates: Iterable[_T]) -> _T:
    """One of them. Raises `NotApplicable` if there is none."""
    found = list(candidates)
    if not found:
        raise NotApplicable
    return rng.choice(found)


def _ok(history: History, *fates: str | None) -> list[Attempt]:
    """The one attempt of records that were sent once, are ok and of such a transaction (None: of no
    transaction)."""
    again = {(attempt.sender, attempt.number) for attempt in history.attempts if attempt.attempt > 1}

    def fate(attempt: Attempt) -> str | None:
        return None if attempt.transaction is None else history.transactions[attempt.transaction].fate

    return [
        attempt
        for attempt in history.attempts
        if attempt.outcome == "ok"
        # Offsets of a group depend on the transactions of a loop.
        and attempt.source is None
        and fate(attempt) in fates
        and (attempt.sender, attempt.number) not in again
    ]


def _rows(history: History, change: Callable[[str, Row], Row | None]) -> History:
    """Topics and tables with each row changed, or dropped."""

    def changed(topic: str, rows: Iterable[Row]) -> tuple[Row, ...]:
        return tuple(new for row in rows if (new := change(topic, row)) is not None)

    return replace(
        history,
        consumed={topic: changed(topic, rows) for topic, rows in history.consumed.items()},
        tables={
            topic: replace(table, rows=changed(topic, table.rows)) for topic, table in history.tables.items()
        },
        fetched=_read(history, changed),
        groups={
            name: replace(reading, processed=_processed(reading.processed, change))
            for name, reading in history.groups.items()
        },
        attempts=tuple(_made(one, change) for one in history.attempts),
    )


def _made(attempt: Attempt, change: Callable[[str, Row], Row | None]) -> Attempt:
    """A record of a loop, whose source is changed as its row is; without one if that is left out."""
    if attempt.source is None:
        return attempt
    topic, partition, offset, digest = attempt.source
    row = change(topic, Row(partition, offset, digest, 0, None))
    source = None if row is None else (topic, partition, row.offset, row.digest)
    return replace(attempt, source=source)


def _processed(
    records: Iterable[Processed], change: Callable[[str, Row], Row | None]
) -> tuple[Processed, ...]:
    """What members processed, with each record changed as its row is, or left out."""
    changed = [
        (one, change(one.topic, Row(one.partition, one.offset, one.digest, 0, None))) for one in records
    ]
    return tuple(
        replace(one, offset=row.offset, digest=row.digest) for one, row in changed if row is not None
    )


def _read(history: History, change: Callable[[str, tuple[Row, ...]], tuple[Row, ...]]) -> dict[str, Fetched]:
    """What Kafka readers got, with the rows of each topic changed."""
    return {
        reader: replace(fetched, rows={topic: change(topic, rows) for topic, rows in fetched.rows.items()})
        for reader, fetched in history.fetched.items()
    }


def _without(history: History, gone: Attempt) -> History:
    return _rows(history, lambda _, row: None if row.digest == gone.digest else row)


def _digests(history: History, names: dict[str, str]) -> History:
    """Topics and tables with some records in the place of others."""
    return _rows(history, lambda _, row: replace(row, digest=names.get(row.digest, row.digest)))


def _swapped(history: History, one: Attempt, other: Attempt) -> History:
    return _digests(history, {one.digest: other.digest, other.digest: one.digest})


def _attempts(history: History, change: Callable[[Attempt], Attempt]) -> History:
    return replace(history, attempts=tuple(change(attempt) for attempt in history.attempts))


def _shifted(history: History, place: Place, by: int) -> History:
    """Offsets are shifted from that place of a partition on, in every source that reports them."""
    topic, partition, start = place

    def shifted(name: str, row: Row) -> Row:
        return (
            replace(row, offset=row.offset + by)
            if (name, row.partition) == (topic, partition) and row.offset >= start
            else row
        )

    def told(one: Attempt) -> Attempt:
        if one.offset is None or (one.topic, one.partition) != (topic, partition) or one.offset < start:
            return one
        return replace(one, offset=one.offset + by)

    found = _attempts(_rows(history, shifted), told)
    ends = (topic, partition), start, by
    shifted_groups = {name: _ends_shifted(reading, *ends) for name, reading in found.groups.items()}
    found = replace(found, groups=shifted_groups)
    if topic in found.tables and found.tables[topic].watermarks.get(partition, 0) > start:
        table = found.tables[topic]
        marks = {**table.watermarks, partition: table.watermarks[partition] + by}
        found = replace(found, tables={**found.tables, topic: TableReading(table.rows, marks)})
    return found


def _ends_shifted(reading: GroupReading, partition: tuple[str, int], start: int, by: int) -> GroupReading:
    """The offsets that a group committed of a partition, if they are behind that place."""

    def moved(offset: int, of: tuple[str, int]) -> int:
        return offset + by if of == partition and offset > start else offset

    return replace(
        reading,
        commits=tuple(replace(one, offset=moved(one.offset, one.partition)) for one in reading.commits),
        seen=tuple(replace(one, offset=moved(one.offset, one.partition)) for one in reading.seen),
        ends={of: moved(end, of) for of, end in reading.ends.items()},
    )


def _at_the_end(
    history: History,
    rng: random.Random,
    digest: str | None,
    topic: str | None = None,
    partition: int | None = None,
) -> History:
    """One more row behind all that is known of a partition, of a copy of one of its rows if no digest is
    given."""
    last: dict[tuple[str, int], Row] = {
        (name, row.partition): row
        for name, rows in history.consumed.items()
        for row in sorted(rows, key=lambda row: row.offset)
    }
    name, number = choose(
        rng, [key for key in last if topic in (None, key[0]) and partition in (None, key[1])]
    )
    before = last[name, number]
    told = [
        one.offset
        for one in history.attempts
        if (one.topic, one.partition) == (name, number) and one.offset is not None
    ]
    mark = history.tables[name].watermarks.get(number, 0) if name in history.tables else 0
    row = replace(
        before,
        offset=max([before.offset + 1, mark, *(offset + 1 for offset in told)]),
        digest=digest or before.digest,
    )
    rows = list(history.consumed[name])
    rows.insert(rows.index(before) + 1, row)
    return replace(history, consumed={**history.consumed, name: tuple(rows)})


def _in_the_gap(history: History, rng: random.Random, digest: str | None) -> History:
    """A row where a record of an aborted transaction was acknowledged: that record, if no digest is given."""
    seen = {row.digest for rows in history.consumed.values() for row in rows}
    gap = choose(rng, [one for one in _ok(history, "aborted") if one.digest not in seen])
    partition, offset = gap.partition or 0, gap.offset or 0

    def put(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        before = [row for row in rows if row.partition == partition and row.offset < offset]
        after = [row for row in rows if row.partition == partition and row.offset > offset]
        time_us = (
            max(row.ingest_us for row in before)
            if before
            else min(row.ingest_us for row in after)
            if after
            else 0
        )
        new = Row(partition, offset, digest or gap.digest, time_us, offset)
        # A reader of uncommitted records had the aborted one there.
        kept = [row for row in rows if (row.partition, row.offset) != (partition, offset)]
        return tuple(sorted([*kept, new], key=lambda row: (row.partition, row.offset)))

    tables = dict(history.tables)
    if gap.topic in tables and offset < tables[gap.topic].watermarks.get(partition, 0):
        tables[gap.topic] = replace(tables[gap.topic], rows=put(tables[gap.topic].rows))
    return replace(
        history,
        consumed={**history.consumed, gap.topic: put(history.consumed[gap.topic])},
        tables=tables,
        fetched=_read(history, lambda topic, rows: put(rows) if topic == gap.topic else rows),
        groups={
            name: _gap_processed(reading, (gap.topic, partition), offset, digest or gap.digest)
            for name, reading in history.groups.items()
        },
    )


def _gap_processed(reading: GroupReading, place: tuple[str, int], offset: int, digest: str) -> GroupReading:
    """A member processed that record with the first ones of the partition."""
    first = next((one for one in reading.processed if (one.topic, one.partition) == place), None)
    if first is None:
        return reading
    new = replace(first, offset=offset, digest=digest)
    return replace(reading, processed=(new, *reading.processed))


@breaks("H1")
def lost(history: History, rng: random.Random) -> History:
    """An acknowledged record is nowhere."""
    return _without(history, choose(rng, _ok(history, None)))


@breaks("H1")
def altered(history: History, rng: random.Random) -> History:
    """One byte of an acknowledged record is another one."""
    return _digests(history, {choose(rng, _ok(history, None, "committed")).digest: "a byte differs"})


@breaks("H1")
def swapped(history: History, rng: random.Random) -> History:
    """Two acknowledged records are in each other's place."""
    first = choose(rng, _ok(history, None, "committed"))
    others = [
        one
        for one in _ok(history, None, "committed")
        if one.digest != first.digest and one.topic == first.topic
    ]
    return _swapped(history, first, choose(rng, others))


@breaks("H2")
def doubled(history: History, rng: random.Random) -> History:
    """A record is there again, at an offset of its own."""
    return _at_the_end(history, rng, None)


@breaks("H2")
def read_twice(history: History, rng: random.Random) -> History:
    """One offset is read twice."""
    topic = choose(rng, [topic for topic, rows in history.consumed.items() if rows])
    rows = list(history.consumed[topic])
    at = rng.randrange(len(rows))
    return replace(history, consumed={**history.consumed, topic: (*rows[: at + 1], *rows[at:])})


@breaks("H3")
def called_failed(history: History, rng: random.Random) -> History:
    """A record is there whose sender got the answer that it failed."""
    chosen = choose(rng, _ok(history, None, "committed"))
    return _attempts(
        history, lambda one: replace(one, outcome="failed", offset=None, error="no") if one is chosen else one
    )


@breaks("H4")
def foreign(history: History, rng: random.Random) -> History:
    """A record is there that no sender sent."""
    return _at_the_end(history, rng, "nobody's record")


@breaks("H4")
def foreign_in_a_gap(history: History, rng: random.Random) -> History:
    """A record that no sender sent has the offset of one that was aborted."""
    return _in_the_gap(history, rng, "nobody's record")


@breaks("H4")
def misplaced(history: History, rng: random.Random) -> History:
    """A record without an answer turns up in a topic it was not sent to."""
    seen = {row.digest for rows in history.consumed.values() for row in rows}
    outcomes = _outcomes(history)
    chosen = choose(
        rng,
        [
            one
            for one in history.attempts
            if one.transaction is None
            and one.digest not in seen
            and outcomes[one.sender, one.number] <= {"unknown", None}
        ],
    )
    return _at_the_end(
        history,
        rng,
        chosen.digest,
        choose(rng, [topic for topic in history.topics if topic != chosen.topic]),
    )


def _outcomes(history: History) -> dict[tuple[str, int], set[str | None]]:
    found: dict[tuple[str, int], set[str | None]] = {}
    for attempt in history.attempts:
        found.setdefault((attempt.sender, attempt.number), set()).add(attempt.outcome)
    return found


@breaks("H5")
def holed(history: History, rng: random.Random) -> History:
    """Offsets are skipped that no record got: from one place of a partition on, all are higher, in every
    source that reports them."""
    place = choose(
        rng, [(topic, row.partition, row.offset) for topic, rows in history.consumed.items() for row in rows]
    )
    return _shifted(history, place, FAR)


@breaks("H5")
def read_out_of_order(history: History, rng: random.Random) -> History:
    """Two neighbours are read in the wrong order."""
    topic, at = choose(
        rng,
        [
            (topic, number)
            for topic, rows in history.consumed.items()
            for number in range(len(rows) - 1)
            if rows[number].partition == rows[number + 1].partition
        ],
    )
    rows = list(history.consumed[topic])
    rows[at], rows[at + 1] = rows[at + 1], rows[at]
    return replace(history, consumed={**history.consumed, topic: tuple(rows)})


@breaks("H6")
def reordered(history: History, rng: random.Random) -> History:
    """Two records of one sender in one partition changed places, and the acknowledgements agree."""
    first = choose(rng, _ok(history, None))
    mates = [
        one
        for one in _ok(history, None)
        if (one.sender, one.topic, one.partition) == (first.sender, first.topic, first.partition)
    ]
    other = choose(rng, [one for one in mates if one is not first])
    offsets = {first.digest: other.offset, other.digest: first.offset}
    found = _attempts(
        history, lambda one: replace(one, offset=offsets[one.digest]) if one.digest in offsets else one
    )
    return _swapped(found, first, other)


@breaks("H7")
def turned_back(history: History, rng: random.Random) -> History:
    """A record was accepted before its predecessor."""
    topic, before, after = choose(
        rng,
        [
            (topic, before, after)
            for topic, rows in history.consumed.items()
            for before, after in pairwise(rows)
            if before.partition == after.partition
        ],
    )
    return _rows(
        history,
        lambda name, row: (
            replace(row, ingest_us=before.ingest_us - 1) if (name, row) == (topic, after) else row
        ),
    )


def _in_table(history: History, rng: random.Random, change: Callable[[list[Row], int], None]) -> History:
    topic = choose(rng, [topic for topic, table in history.tables.items() if table.rows])
    table = history.tables[topic]
    rows = list(table.rows)
    change(rows, rng.randrange(len(rows)))
    return replace(history, tables={**history.tables, topic: replace(table, rows=tuple(rows))})


@breaks("H8")
def table_lost(history: History, rng: random.Random) -> History:
    """A row is missing from a table."""
    return _in_table(history, rng, lambda rows, at: rows.__delitem__(at))


@breaks("H8")
def table_doubled(history: History, rng: random.Random) -> History:
    """A row is in a table twice."""
    return _in_table(history, rng, lambda rows, at: rows.insert(at, rows[at]))


@breaks("H8")
def table_altered(history: History, rng: random.Random) -> History:
    """A row of a table has another byte."""
    return _in_table(
        history, rng, lambda rows, at: rows.__setitem__(at, replace(rows[at], digest="a byte differs"))
    )


@breaks("H8")
def table_moved(history: History, rng: random.Random) -> History:
    """A row of a table says that it has another offset."""
    return _in_table(
        history, rng, lambda rows, at: rows.__setitem__(at, replace(rows[at], offset=rows[at].offset + FAR))
    )


@breaks("H8")
def table_retimed(history: History, rng: random.Random) -> History:
    """A row of a table has another ingest time."""
    return _in_table(
        history,
        rng,
        lambda rows, at: rows.__setitem__(at, replace(rows[at], ingest_us=rows[at].ingest_us + 1)),
    )


@breaks("H8")
def watermark_lowered(history: History, rng: random.Random) -> History:
    """A table has a row at its watermark."""
    topic, last = choose(
        rng, [(topic, table.rows[-1]) for topic, table in history.tables.items() if table.rows]
    )
    table = history.tables[topic]
    marks = {**table.watermarks, last.partition: last.offset}
    return replace(history, tables={**history.tables, topic: TableReading(table.rows, marks)})


@breaks("H9")
def committed_lost(history: History, rng: random.Random) -> History:
    """A record of a committed transaction is nowhere."""
    return _without(history, choose(rng, _ok(history, "committed")))


@breaks("H10")
def aborted_shown(history: History, rng: random.Random) -> History:
    """A record of an aborted transaction is at the offset it was given."""
    return _in_the_gap(history, rng, None)


def _told(history: History, name: str, *steps: tuple[str, str | None]) -> History:
    changed = Transaction(name, steps)  # type: ignore[arg-type]
    return replace(history, transactions={**history.transactions, name: changed})


@breaks("H10")
def aborted_committed(history: History, rng: random.Random) -> History:
    """A transaction is there, and its sender had asked to abort it."""
    return _told(history, choose(rng, _ok(history, "committed")).transaction or "", ("abort", "ok"))


@breaks("H11")
def halved(history: History, rng: random.Random) -> History:
    """Of a transaction whose commit got no answer one record is missing."""
    committed = _ok(history, "committed")
    chosen = choose(
        rng,
        [one for one in committed if sum(other.transaction == one.transaction for other in committed) > 1],
    )
    return _told(_without(history, chosen), chosen.transaction or "", ("commit", "unknown"))


@breaks("H12")
def moved_by_repeating(history: History, rng: random.Random) -> History:
    """A record that is sent again gets another offset."""
    chosen = choose(rng, [one for one in _ok(history, None, "committed") if one.sequence is not None])
    again = replace(chosen, attempt=chosen.attempt + 1, offset=(chosen.offset or 0) + FAR)
    return replace(history, attempts=(*history.attempts, again))


@breaks("H13")
def offset_of_an_error(history: History, rng: random.Random) -> History:
    """A record that failed, or may have, is acknowledged with offset 0."""
    chosen = choose(rng, [one for one in history.attempts if one.outcome in ("failed", "unknown")])
    return _attempts(history, lambda one: replace(one, offset=0) if one is chosen else one)


@breaks("H13")
def ok_without_offset(history: History, rng: random.Random) -> History:
    """A record is acknowledged ok, without its offset."""
    chosen = choose(rng, _ok(history, None, "committed"))
    return _attempts(history, lambda one: replace(one, offset=None) if one is chosen else one)


def _of_files(history: History) -> list[tuple[Attempt, Place]]:
    """The records that came in files, with the places where they are."""
    places = {
        row.digest: (topic, row.partition, row.offset)
        for topic, rows in history.consumed.items()
        for row in rows
    }
    return [
        (one, places[one.digest])
        for one in history.attempts
        if one.file in history.dropped and one.digest in places
    ]


@breaks("H14")
def skipped_in_a_file(history: History, rng: random.Random) -> History:
    """A source leaves out one record of a file."""
    chosen, place = choose(rng, _of_files(history))
    return _shifted(_without(history, chosen), place, -1)


@breaks("H14")
def file_not_taken_in(history: History, rng: random.Random) -> History:
    """A file lies there, and its source has not seen it."""
    chosen, _ = choose(rng, _of_files(history))
    unseen = replace(
        chosen, file="unseen.jsonl", sender=f"{chosen.sender}-unseen", digest="in a file that nobody saw"
    )
    return replace(history, attempts=(*history.attempts, unseen), dropped=history.dropped | {"unseen.jsonl"})


@breaks("H6")
def file_out_of_order(history: History, rng: random.Random) -> History:
    """Two records of a file changed places."""
    first, place = choose(rng, _of_files(history))
    mates = [
        one
        for one, at in _of_files(history)
        if one.file == first.file and at[:2] == place[:2] and one is not first
    ]
    return _swapped(history, first, choose(rng, mates))


def _mirrored(
    history: History,
    rng: random.Random,
    change: Callable[[tuple[Row, ...], Row], tuple[Row, ...]],
    *sides: str,
) -> History:
    """A mirrored topic with another stream, another table or both; `change` gets the rows of a side and the
    one that was chosen."""
    name = choose(rng, [name for name, mirror in history.mirrors.items() if mirror.upstream])
    mirror = history.mirrors[name]
    chosen = choose(rng, mirror.consumed)
    table = mirror.table
    changed = MirrorReading(
        mirror.upstream,
        change(mirror.consumed, chosen) if "stream" in sides else mirror.consumed,
        TableReading(change(table.rows, chosen), table.watermarks) if "table" in sides else table,
    )
    return replace(history, mirrors={**history.mirrors, name: changed})


@breaks("H15")
def mirrored_lost(history: History, rng: random.Random) -> History:
    """A committed record of the upstream is nowhere."""
    return _mirrored(
        history, rng, lambda rows, gone: tuple(row for row in rows if row != gone), "stream", "table"
    )


@breaks("H15")
def mirrored_lost_on_the_way_to_the_table(history: History, rng: random.Random) -> History:
    """It is in the stream, and the table does not get it."""
    return _mirrored(history, rng, lambda rows, gone: tuple(row for row in rows if row != gone), "table")


@breaks("H15")
def mirrored_twice(history: History, rng: random.Random) -> History:
    """A record is there twice."""
    return _mirrored(
        history,
        rng,
        lambda rows, one: tuple(sorted([*rows, one], key=lambda row: (row.partition, row.offset))),
        "table",
    )


@breaks("H15")
def mirrored_at_another_offset(history: History, rng: random.Random) -> History:
    """A record has an offset of our own making."""

    def moved(rows: tuple[Row, ...], one: Row) -> tuple[Row, ...]:
        return tuple(replace(row, offset=row.offset + FAR) if row == one else row for row in rows)

    return _mirrored(history, rng, moved, "stream", "table")


@breaks("H15")
def mirrored_aborted(history: History, rng: random.Random) -> History:
    """A record of an aborted transaction is taken for a committed one."""

    def taken(rows: tuple[Row, ...], one: Row) -> tuple[Row, ...]:
        last = max((row for row in rows if row.partition == one.partition), key=lambda row: row.offset)
        aborted = replace(last, offset=last.offset + 2, digest="of an aborted transaction")
        return tuple(sorted([*rows, aborted], key=lambda row: (row.partition, row.offset)))

    return _mirrored(history, rng, taken, "stream", "table")


@breaks("H15")
def mirrored_otherwise(history: History, rng: random.Random) -> History:
    """A record has lost its headers."""

    def changed(rows: tuple[Row, ...], one: Row) -> tuple[Row, ...]:
        return tuple(replace(row, digest="without its headers") if row == one else row for row in rows)

    return _mirrored(history, rng, changed, "stream", "table")


def _fetched(
    history: History, rng: random.Random, change: Callable[[list[Row], int], list[Row]], after: int = 0
) -> History:
    """One reader that came to the end, with other rows of one topic; `change` gets them and the place of one that has `after` rows of
    its partition before it."""
    reader, topic, at = choose(
        rng,
        [
            (reader, topic, at)
            for reader, fetched in history.fetched.items()
            if fetched.ends
            for topic, rows in fetched.rows.items()
            for at in range(after, len(rows))
            if all(row.partition == rows[at].partition for row in rows[at - after : at])
        ],
    )
    fetched = history.fetched[reader]
    rows = tuple(change(list(fetched.rows[topic]), at))
    changed = replace(fetched, rows={**fetched.rows, topic: rows})
    return replace(history, fetched={**history.fetched, reader: changed})


@breaks("H16")
def reader_skips(history: History, rng: random.Random) -> History:
    """A Kafka reader does not get a record, perhaps the last one that it should get."""
    stored = {row.digest for rows in history.consumed.values() for row in rows}
    reader, topic, gone = choose(
        rng,
        [
            (reader, topic, row)
            for reader, fetched in history.fetched.items()
            for topic, rows in fetched.rows.items()
            for row in rows
            if row.digest in stored and row.offset < _read_to(fetched, topic, row)
        ],
    )
    fetched = history.fetched[reader]
    kept = {**fetched.rows, topic: tuple(row for row in fetched.rows[topic] if row is not gone)}
    return replace(history, fetched={**history.fetched, reader: replace(fetched, rows=kept)})


def _read_to(fetched: Fetched, topic: str, row: Row) -> int:
    """Below this offset the reader must have every record of the partition, also without this one."""
    others = [
        one.offset
        for one in fetched.rows[topic]
        if one.partition == row.partition and one.offset != row.offset
    ]
    if not others:
        return 0  # A partition without records is not judged.
    return max(*others, fetched.ends.get((topic, row.partition), 0))


@breaks("H16")
def reader_gets_twice(history: History, rng: random.Random) -> History:
    """It gets a record again."""
    return _fetched(history, rng, lambda rows, at: rows[: at + 1] + rows[at:])


@breaks("H16")
def reader_goes_back(history: History, rng: random.Random) -> History:
    """It gets the record before behind the newer one."""
    return _fetched(
        history, rng, lambda rows, at: [*rows[: at - 1], rows[at], rows[at - 1], *rows[at + 1 :]], after=1
    )


@breaks("H17")
def reader_gets_other_bytes(history: History, rng: random.Random) -> History:
    """It gets a record whose bytes are not those that are stored."""

    def altered(rows: list[Row], at: int) -> list[Row]:
        return [*rows[:at], replace(rows[at], digest="other bytes"), *rows[at + 1 :]]

    return _fetched(history, rng, altered)


@breaks("H17")
def reader_gets_what_is_not_there(history: History, rng: random.Random) -> History:
    """It gets a record behind the end of the log, as of a write that failed."""

    def added(rows: list[Row], at: int) -> list[Row]:
        far = max(row.offset for row in rows) + FAR
        return [*rows, replace(rows[at], offset=far, digest="of a failed write")]

    return _fetched(history, rng, added)


@breaks("H17")
def uncommitted_reader_gets_another_place(history: History, rng: random.Random) -> History:
    """A reader of uncommitted records gets one of an aborted transaction at an offset that no record has."""
    reader = choose(
        rng, [name for name, fetched in history.fetched.items() if fetched.isolation == "uncommitted"]
    )
    fetched = history.fetched[reader]
    gap = choose(rng, [one for one in _ok(history, "aborted") if one.topic in fetched.rows])
    rows = [one for one in fetched.rows[gap.topic] if one.digest != gap.digest]
    far = max(one.offset for one in rows) + FAR
    changed = (*rows, Row(gap.partition or 0, far, gap.digest, 0, None))
    found = replace(fetched, rows={**fetched.rows, gap.topic: changed})
    return replace(history, fetched={**history.fetched, reader: found})


@breaks("H18")
def read_before_its_commit(history: History, rng: random.Random) -> History:
    """A reader of committed records gets one of an open transaction, which is committed later."""
    chosen = choose(rng, _ok(history, "committed"))
    reader = choose(
        rng,
        [
            reader
            for reader, fetched in history.fetched.items()
            if fetched.isolation == "committed" and chosen.digest in fetched.first_s
        ],
    )
    asked_s = history.transactions[chosen.transaction or ""].asked_s
    if asked_s is None:
        raise NotApplicable
    fetched = history.fetched[reader]
    early = replace(fetched, first_s={**fetched.first_s, chosen.digest: asked_s - 0.1})
    return replace(history, fetched={**history.fetched, reader: early})


@breaks("H19")
def fenced_commit(history: History, rng: random.Random) -> History:
    """A producer commits after a second one has opened its id, and gets an acknowledgement."""
    name = choose(
        rng, [name for name, transaction in history.transactions.items() if transaction.fate == "aborted"]
    )
    return _told(history, name, ("fenced", "ok"), ("commit", "ok"))


@breaks("H10")
def fenced_committed(history: History, rng: random.Random) -> History:
    """A transaction is there, though a second producer was open before its commit."""
    name = choose(rng, _ok(history, "committed")).transaction or ""
    return _told(history, name, ("fenced", "ok"), ("commit", "failed"))
