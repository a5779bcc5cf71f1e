"""Does the index name an archive that covers an offset, also where archives overlap?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.objects.paths import archive_key
from archiver.runtime.ids import TopicId
from archiver.stream.archives import ArchiveIndex, FoundArchive, find_archives
from tests.support.objects.memory_store import MemoryObjectStore

TOPIC = TopicId("b" * 32)


def found(base: int, end: int, epoch: int = 1) -> FoundArchive:
    return FoundArchive(f"{base}-{end}-{epoch}", 1, TOPIC, 0, base, end, epoch)


@given(
    archives=st.lists(
        st.builds(
            lambda base, rows, epoch: found(base, base + rows, epoch),
            st.integers(0, 20),
            st.integers(1, 9),
            st.integers(1, 3),
        )
    ),
    offset=st.integers(0, 32),
)
def test_covering_agrees_with_looking_at_each(archives: list[FoundArchive], offset: int) -> None:
    index = ArchiveIndex(archives)
    best = max(
        (item for item in archives if item.base <= offset < item.end),
        key=lambda item: (item.end, item.epoch),
        default=None,
    )
    chosen = index.covering(offset)
    assert (chosen is None) == (best is None)
    if chosen is not None and best is not None:
        assert (chosen.end, chosen.epoch) == (best.end, best.epoch)
        assert chosen.base <= offset
    assert index.next_base(offset) == min(
        (item.base for item in archives if item.base > offset), default=None
    )


def test_listing_passes_over_strangers_and_killed_ones() -> None:
    objects = MemoryObjectStore()
    kept = archive_key(TOPIC, 3, "day", 20_000, 0, 5, 1)
    killed = archive_key(TOPIC, 3, "day", 20_000, 5, 9, 1)
    for key in (
        kept,
        killed,
        kept.replace(".parquet", ".txt"),
        archive_key(TOPIC, 4, "day", 20_000, 0, 5, 1),
    ):
        objects.create(key, b"x")
    index = find_archives(objects, TOPIC, 3, ArchiveVisibility(spare={killed}))
    assert len(index) == 1
    only = index.covering(0)
    assert only is not None
    assert (only.key, only.size) == (kept, 1)
