"""Which archives of a table are merged with each other. Pure.

Small archives of one table partition that follow each other become one of up to the size that is wanted. What
has half of that size is left as it is, and none is merged with so little that it would not grow by half: so a
record is written anew a few times at most, however often it is looked and whatever comes late. A table
partition is looked at once nothing comes into it any more, but for what is archived late: that is merged the
next time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from archiver.catalog.tables import LiveFile
from archiver.objects.paths import Granularity, parse_archive_key, partition_value_of
from archiver.rewrite.merge import Small

TOGETHER_MAX = 1000
"""Archives that become one."""


@dataclass(frozen=True, slots=True)
class CompactTarget:
    """What an archive must fit to be merged."""

    topic_id: str
    spec_id: int
    """Of the table's default partition spec."""
    granularity: Granularity
    bytes: int
    """Size of an archive that is wanted."""
    closed_us: int
    """What ended before is closed."""
    start: Callable[[int], int]
    """Of each topic partition: what begins below leaves with retention."""


def smalls(
    files: Iterable[LiveFile],
    key_of: Callable[[str], str | None],
    target: CompactTarget,
    given_up: Container[str],
) -> list[Small]:
    """The archives that may be merged, in the order of topic partitions, table partitions and offsets; none
    whose key is `given_up`.
    """
    open_from = partition_value_of(target.closed_us, target.granularity)
    found: list[Small] = []
    for file in files:
        key = key_of(file.path)
        parsed = None if key is None else parse_archive_key(key)
        if key is None or parsed is None or parsed.topic_id != target.topic_id or key in given_up:
            continue
        if (
            file.spec_id != target.spec_id
            or parsed.granularity != target.granularity
            or parsed.partition_value >= open_from
        ):
            continue
        if file.file_size * 2 < target.bytes and parsed.base >= target.start(parsed.partition):
            found.append(Small(file.path, key, file.file_size, parsed))
    return sorted(
        found, key=lambda one: (one.archive.partition, one.archive.partition_value, one.archive.base)
    )


def runs(found: Iterable[Small], bytes_wanted: int) -> Iterator[list[Small]]:
    """What becomes one archive each: neighbours without a hole between them, together half as large again as
    the largest at least.
    """
    together: list[Small] = []
    size = 0
    for one in found:
        full = len(together) == TOGETHER_MAX or size + one.size > bytes_wanted
        if together and (full or not _follows(together[-1], one)):
            if is_worth_it(together):
                yield together
            together, size = [], 0
        together.append(one)
        size += one.size
    if is_worth_it(together):
        yield together


def is_worth_it(together: Sequence[Small]) -> bool:
    """Whether each of them would stand in an archive that is half as large again."""
    sizes = [one.size for one in together]
    return len(sizes) > 1 and 2 * sum(sizes) >= 3 * max(sizes)


def _follows(before: Small, after: Small) -> bool:
    """In the same table partition, and offset by offset."""
    one, other = before.archive, after.archive
    return (one.partition, one.partition_value, one.end) == (
        other.partition,
        other.partition_value,
        other.base,
    )
