"""Which events go to the control topic together, and what a published event contains."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from archiver.control_topic.waves import record_of, waves
from archiver.ledger.event_reader import LedgerEvent
from tests.support.kafka.control_topic import CLUSTER, LedgerWriter, events_of, topic_id
from tests.support.log.memory_log import MemoryLogStore


def made(table: int, size: int = 1) -> LedgerEvent:
    return LedgerEvent(
        0, bytes(16), 1, "DATA_WRITTEN", bytes(16), topic_id(table) if table else b"", b"x" * size
    )


def test_a_wave_has_one_event_of_a_table_and_events_of_rounds_are_alone() -> None:
    events = [made(0), made(1), made(2), made(1), made(3), made(0), made(0), made(4)]
    assert [[events.index(one, place) for place, one in enumerate(wave)] for wave in waves(events)]
    shape = [[int.from_bytes(event.topic_id) for event in wave] for wave in waves(events)]
    assert shape == [[0], [1, 2], [1, 3], [0], [0], [4]]


def test_a_wave_is_bounded_and_one_event_is_never_too_large_for_one() -> None:
    sizes = [
        [len(event.data) for event in wave]
        for wave in waves([made(1, 5), made(2, 5), made(3, 50), made(4, 1)], bytes_max=10)
    ]
    assert sizes == [[5, 5], [50], [1]]
    assert [len(wave) for wave in waves([made(table) for table in range(1, 8)], events_max=3)] == [3, 3, 1]


@given(st.lists(st.integers(0, 4), max_size=40))
def test_waves_keep_every_event_and_its_order(tables: Sequence[int]) -> None:
    events = [made(table, number + 1) for number, table in enumerate(tables)]
    cut = list(waves(events, events_max=3))
    assert [event for wave in cut for event in wave] == events
    assert all(len({event.topic_id for event in wave}) == len(wave) for wave in cut)


def test_a_record_says_what_a_trigger_needs() -> None:
    log = MemoryLogStore(512 * 1024).log("control")
    LedgerWriter(log).round(1)
    records = {event.kind: record_of(CLUSTER, event) for event in events_of(log)}
    commit, whole = dict(records["COMMIT_TO_TABLE"].headers), dict(records["COMMIT_COMPLETE"].headers)
    assert commit["archiver.table"] == b"shop.table_1"
    assert commit["archiver.snapshot-id"] == b"77"
    assert (
        commit["archiver.valid-through"] == whole["archiver.valid-through"] == b"2026-01-02T03:04:05.678901Z"
    )
    assert commit["archiver.commit-id"] == whole["archiver.commit-id"]
    assert (
        records["COMMIT_TO_TABLE"].key
        == records["DATA_WRITTEN"].key
        == f"{CLUSTER}/{topic_id(1).hex()}".encode()
    )
    assert records["START_COMMIT"].key == whole["archiver.cluster-id"] == CLUSTER.encode()
    assert "archiver.topic-id" not in whole
