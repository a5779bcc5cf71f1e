"""Mistakes of a product with consumer groups, played on a good history, and all those of `mutations.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.harness.history import Attempt, GroupCommit, GroupReading, History, OffsetSeen, Processed, Source
from tests.harness.loop_judging import is_loop
from tests.harness.mutations import FAR, MUTATIONS, NotApplicable, breaks, choose

__all__ = ["MUTATIONS", "NotApplicable"]

AFTER_S = 1000.0
"""Behind the end of every run, in its seconds."""


def _group(
    history: History,
    rng: random.Random,
    change: Callable[[GroupReading], GroupReading],
    useful: Callable[[GroupReading], object],
) -> History:
    """One group with another reading."""
    name = choose(rng, [name for name, reading in history.groups.items() if useful(reading)])
    return replace(history, groups={**history.groups, name: change(history.groups[name])})


def _seen_last(history: History, rng: random.Random, by: int) -> History:
    """A daemon gives an offset that is changed by so much, at the end."""

    def change(reading: GroupReading) -> GroupReading:
        newest = {one.partition: one for one in reading.seen if one.offset > 0}
        one = newest[choose(rng, sorted(newest))]
        end_s = reading.seen[-1].ended_s + AFTER_S
        late = OffsetSeen(one.partition, max(-1, one.offset + by), end_s, end_s + 0.1, 1)
        return replace(reading, seen=(*reading.seen, late))

    return _group(history, rng, change, lambda reading: any(one.offset > 0 for one in reading.seen))


@breaks("H20")
def offset_back(history: History, rng: random.Random) -> History:
    """A daemon answers with the committed offset of before."""
    return _seen_last(history, rng, -1)


@breaks("H20")
def offset_gone(history: History, rng: random.Random) -> History:
    """A daemon no longer knows a committed offset."""
    return _seen_last(history, rng, -FAR * FAR)


@breaks("H20")
def offset_of_no_member(history: History, rng: random.Random) -> History:
    """A daemon answers with an offset that no member has committed."""
    return _seen_last(history, rng, FAR)


@breaks("H20")
def acknowledged_offset_lost(history: History, rng: random.Random) -> History:
    """A commit is acknowledged, and the observer sees the offset before it from then on."""

    def change(reading: GroupReading) -> GroupReading:
        newest = {one.partition: one for one in reading.commits if one.answered_s is not None}
        lost = newest[choose(rng, sorted(newest))]
        before = max(
            (
                one.offset
                for one in reading.commits
                if one.partition == lost.partition and one.offset < lost.offset
            ),
            default=-1,
        )
        end_s = reading.seen[-1].ended_s + AFTER_S
        kept = [one for one in reading.seen if one.partition != lost.partition]
        return replace(reading, seen=(*kept, OffsetSeen(lost.partition, before, end_s, end_s, 0)))

    return _group(history, rng, change, lambda reading: any(one.answered_s for one in reading.commits))


@breaks("H20")
def member_starts_too_early(history: History, rng: random.Random) -> History:
    """A member gets a partition at the end and begins at its first record again."""

    def change(reading: GroupReading) -> GroupReading:
        acknowledged = {one.partition for one in reading.commits if one.answered_s is not None}
        places = [one for one in reading.processed if (one.topic, one.partition) in acknowledged]
        first = min(places, key=lambda one: (one.topic, one.partition, one.offset))
        end_s = reading.processed[-1].at_s + AFTER_S
        assigned = replace(
            reading.assigned[-1], partition=(first.topic, first.partition), at_s=end_s, member="last"
        )
        again = replace(first, member="last", at_s=end_s + 1)
        return replace(reading, assigned=(*reading.assigned, assigned), processed=(*reading.processed, again))

    return _group(history, rng, change, lambda reading: any(one.answered_s for one in reading.commits))


def _without_processed(history: History, rng: random.Random, last: bool) -> History:
    def change(reading: GroupReading) -> GroupReading:
        ends: dict[tuple[str, int], Processed] = {}
        for one in reading.processed:
            place = (one.topic, one.partition)
            if place not in ends or (ends[place].offset < one.offset) == last:
                ends[place] = one
        gone = ends[choose(rng, sorted(ends))]
        found = (gone.topic, gone.partition, gone.offset)
        kept = [one for one in reading.processed if (one.topic, one.partition, one.offset) != found]
        return replace(reading, processed=tuple(kept))

    return _group(history, rng, change, lambda reading: reading.processed)


@breaks("H21")
def group_skips_the_first(history: History, rng: random.Random) -> History:
    """No member gets the first record of a partition."""
    return _without_processed(history, rng, last=False)


@breaks("H21")
def group_skips_the_last(history: History, rng: random.Random) -> History:
    """No member gets the last record of a partition, though offsets behind it may be committed."""
    return _without_processed(history, rng, last=True)


@breaks("H21")
def group_is_stuck(history: History, rng: random.Random) -> History:
    """From some time on, members get nothing of a partition and commit nothing."""

    def change(reading: GroupReading) -> GroupReading:
        commits = {one.partition: one for one in reading.commits}
        last = commits[choose(rng, sorted(commits))]
        topic, partition = last.partition
        below = min(
            (
                one.offset
                for one in reading.commits
                if one.partition == last.partition and one.offset < last.offset
            ),
            default=0,
        )
        return replace(
            reading,
            commits=tuple(
                one for one in reading.commits if one.partition != last.partition or one.offset <= below
            ),
            seen=tuple(one for one in reading.seen if one.partition != last.partition or one.offset <= below),
            processed=tuple(
                one
                for one in reading.processed
                if (one.topic, one.partition) != (topic, partition) or one.offset < below
            ),
        )

    return _group(history, rng, change, lambda reading: reading.commits and not is_loop(reading))


@breaks("H20")
def offset_of_an_aborted_transaction(history: History, rng: random.Random) -> History:
    """A daemon answers with an offset whose transaction was aborted."""

    def change(reading: GroupReading) -> GroupReading:
        newest = {one.partition: one for one in reading.seen if one.offset > 0}
        one = newest[choose(rng, sorted(newest))]
        end_s = reading.seen[-1].ended_s + AFTER_S
        late = OffsetSeen(one.partition, one.offset + FAR, end_s, end_s + 0.1, 1)
        aborted = GroupCommit(one.partition, late.offset, end_s - 1, transaction="aborted by the loop")
        return replace(reading, seen=(*reading.seen, late), commits=(*reading.commits, aborted))

    return _group(history, rng, change, is_loop)


@breaks("H22")
def member_gets_other_bytes(history: History, rng: random.Random) -> History:
    """A member gets a record whose bytes are not those that are stored."""

    def change(reading: GroupReading) -> GroupReading:
        at = rng.randrange(len(reading.processed))
        other = replace(reading.processed[at], digest="other bytes")
        return replace(reading, processed=(*reading.processed[:at], other, *reading.processed[at + 1 :]))

    return _group(history, rng, change, lambda reading: reading.processed)


@breaks("H22")
def member_gets_what_was_aborted(history: History, rng: random.Random) -> History:
    """A member gets a record of an aborted transaction, at an offset that readers of committed records skip."""

    def change(reading: GroupReading) -> GroupReading:
        one = choose(rng, reading.processed)
        aborted = replace(one, offset=one.offset + FAR * FAR, digest="of an aborted transaction")
        return replace(reading, processed=(*reading.processed, aborted))

    return _group(history, rng, change, lambda reading: reading.processed)


def _written(history: History) -> list[Attempt]:
    """Records of a loop that are in its output."""
    seen = {row.digest for rows in history.consumed.values() for row in rows}
    return [one for one in history.attempts if one.source is not None and one.digest in seen]


def _sources(history: History, sources: dict[str, Source | None]) -> History:
    """Records of a loop that were made from other ones; by their digests."""
    changed = [
        replace(one, source=sources[one.digest]) if one.digest in sources else one for one in history.attempts
    ]
    return replace(history, attempts=tuple(changed))


@breaks("H23")
def loop_writes_twice(history: History, rng: random.Random) -> History:
    """A loop writes a record again, in the place of another one."""
    one = choose(rng, _written(history))
    mates = [other for other in _written(history) if other.source != one.source]
    return _sources(history, {choose(rng, mates).digest: one.source})


@breaks("H23")
def loop_skips(history: History, rng: random.Random) -> History:
    """A loop commits the offset of a record and not its output."""
    return _sources(history, {choose(rng, _written(history)).digest: None})


@breaks("H23")
def loop_changes_the_order(history: History, rng: random.Random) -> History:
    """Two records of a partition change places in the output."""
    one = choose(rng, _written(history))
    mates = [
        other
        for other in _written(history)
        if other is not one and other.source and one.source and other.source[:2] == one.source[:2]
    ]
    other = choose(rng, mates)
    return _sources(history, {one.digest: other.source, other.digest: one.source})


@breaks("H23")
def loop_reads_what_was_aborted(history: History, rng: random.Random) -> History:
    """A loop reads a record of an aborted transaction, which no reader of committed records gets."""
    one = choose(rng, _written(history))
    stored = {row.digest for rows in history.consumed.values() for row in rows}
    aborted = choose(
        rng,
        [
            other
            for other in history.attempts
            if other.transaction
            and history.transactions[other.transaction].fate == "aborted"
            and other.digest not in stored
        ],
    )
    assert one.source is not None
    return _sources(history, {one.digest: (*one.source[:3], aborted.digest)})


@breaks("H23")
def loop_output_without_its_offset(history: History, rng: random.Random) -> History:
    """The output of the last transaction is there, and its offset is not committed."""

    def change(reading: GroupReading) -> GroupReading:
        ends = {one.partition: one for one in reading.seen if one.offset > 0}
        partition = choose(rng, sorted(ends))
        seen = tuple(one for one in reading.seen if one.partition != partition or one.offset <= 0)
        return replace(reading, seen=seen)

    return _group(history, rng, change, lambda reading: is_loop(reading) and reading.seen)


@breaks("H23")
def loop_is_stuck(history: History, rng: random.Random) -> History:
    """A loop does not come to the end of a partition."""
    name = choose(
        rng, [name for name, reading in history.groups.items() if is_loop(reading) and reading.ends]
    )
    reading = history.groups[name]
    partition = choose(rng, [one for one in sorted(reading.ends) if reading.ends[one]])
    further = {**reading.ends, partition: reading.ends[partition] + FAR}
    return replace(history, groups={**history.groups, name: replace(reading, ends=further)})
