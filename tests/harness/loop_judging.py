"""The judge of a loop that reads, processes and writes exactly once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tests.harness.history import GroupReading, Place, Row, Source, Transaction


def is_loop(reading: GroupReading) -> bool:
    """Whether the group commits its offsets in transactions."""
    return any(commit.transaction is not None for commit in reading.commits)


def committed(reading: GroupReading, transactions: Mapping[str, Transaction]) -> GroupReading:
    """The reading without the offsets of transactions that were not committed; the others count as acknowledged
    when their transaction was."""
    commits = []
    for commit in reading.commits:
        known = transactions.get(commit.transaction or "")
        if commit.transaction is None:
            commits.append(commit)
        elif known is not None and known.fate != "aborted" and known.asked_s is not None:
            commits.append(replace(commit, asked_s=known.asked_s, answered_s=known.committed_s))
    return replace(reading, commits=tuple(commits))


def loop_broken(
    reading: GroupReading,
    rows: Mapping[tuple[str, int], Sequence[Row]],
    outputs: Iterable[tuple[Place, Source]],
    explained: Callable[[str], bool],
) -> Iterator[tuple[str, str]]:
    """H23: where it is broken, and how. `outputs`: the records of the output that are there. `explained`: whether
    another rule says that the record with this digest should not be there."""
    final: dict[tuple[str, int], int] = {}
    for seen in reading.seen:
        final[seen.partition] = max(final.get(seen.partition, -1), seen.offset)
    made: dict[tuple[str, int], list[tuple[Place, Source]]] = defaultdict(list)
    for place, source in outputs:
        made[source[:2]].append((place, source))
    for partition, end in reading.ends.items():
        name = f"{partition[0]}:{partition[1]}"
        there = {row.offset: row.digest for row in rows.get(partition, ())}
        newest, done = -1, set()
        for place, (_, _, offset, digest) in sorted(made[partition]):
            where = f"{name}:{offset}"
            if offset in done:
                yield where, f"written twice, the second time at {place}"
            elif offset < newest:
                yield where, f"written at {place}, after offset {newest}"
            elif there.get(offset) != digest:
                yield where, f"the loop read {digest}, consume has {there.get(offset, 'nothing')}"
            done.add(offset)
            newest = max(newest, offset)
        offset = final.get(partition, -1)
        if offset < end and there:
            yield name, f"the loop committed {offset}, and the partition ends at {end}"
        for one in sorted(done):
            if one >= offset:
                yield f"{name}:{one}", f"written, and the committed offset is {offset}"
        for one, digest in there.items():
            if one < offset and one not in done and not explained(digest):
                yield f"{name}:{one}", f"not written, and the committed offset is {offset}"
