"""Sentinel values of the Kafka library never count as offsets, times, epochs or sizes."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka as library
import pytest
from pyiceberg.table.snapshots import Snapshot

from archiver.catalog.iceberg.values import _snapshot
from archiver.runtime.clock import ManualClock
from intake.sources.kafka import client as kafka_client
from intake.sources.kafka.client import (
    NO_RECORD,
    OFFSET_MAX,
    KafkaClient,
    known,
    known_bounds,
    known_since,
    known_size,
)
from intake.sources.kafka.upstream import Bounds, Place

SENTINELS = [
    library.OFFSET_INVALID,
    library.OFFSET_STORED,
    library.OFFSET_BEGINNING,
    library.OFFSET_END,
    -(2**63),
]
NO_NUMBERS: list[Any] = [*SENTINELS, None, True, 2**63, 1.5, "7"]


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_a_sentinel_is_not_known(number: Any) -> None:
    assert known(number) is None
    assert known_bounds(number, 7) is None
    assert known_bounds(0, number) is None
    assert known_since(number) is None or number == NO_RECORD


def test_the_ends_of_the_range_are_known() -> None:
    assert (known(0), known(OFFSET_MAX)) == (0, OFFSET_MAX)
    assert known_bounds(0, 0) == Bounds(0, 0), "a partition that just begins"
    assert known_bounds(7, 7) == Bounds(7, 7), "one whose records were all deleted"
    assert known_bounds(8, 7) is None, "two answers that contradict each other"


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1048588", 1048588), ("-1", None), ("", None), (None, None), ("1.5", None)]
)
def test_a_size_of_a_topics_configuration(text: str | None, size: int | None) -> None:
    assert known_size(text) == size


class Cluster:
    """The administrative client of the library: its responses to requests for offsets, by kind of request."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = offsets

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        found: dict[Any, Future[Any]] = {}
        for partition, spec in asked.items():
            found[partition] = Future()
            found[partition].set_result(
                SimpleNamespace(offset=self.offsets[spec if isinstance(spec, str) else "since"])
            )
        return found

    def describe_topics(self, *_: Any, **__: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        node = SimpleNamespace(id=-1)
        partitions = [
            SimpleNamespace(id=0, leader=SimpleNamespace(id=1)),
            SimpleNamespace(id=1, leader=node),
            SimpleNamespace(id=2, leader=None),
        ]
        topic_id = SimpleNamespace(get_most_significant_bits=lambda: 1, get_least_significant_bits=lambda: 2)
        future.set_result(
            SimpleNamespace(
                is_internal=False, topic_id=topic_id, partitions=partitions if self.offsets else []
            )
        )
        return {"t": future}


def client_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    client: Any = KafkaClient.__new__(KafkaClient)  # `__init__` would connect
    client._admin, client._timeout_s, client._log, client._leaderless = cluster, 1.0, None, set()
    client._clock = ManualClock()
    specs = SimpleNamespace(
        earliest=lambda: "low", latest=lambda: "high", for_timestamp=lambda since_ms: since_ms
    )
    monkeypatch.setattr(kafka_client, "_SPECS", specs)
    return client


PLACE: Place = ("t", 0)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, library.OFFSET_INVALID, {}),
        (library.OFFSET_INVALID, 7, {}),
        (library.OFFSET_END, library.OFFSET_END, {}),
        (0, 0, {PLACE: Bounds(0, 0)}),
        (7, 7, {PLACE: Bounds(7, 7)}),
        (3, 7, {PLACE: Bounds(3, 7)}),
    ],
)
def test_bounds_of_a_partition(
    low: int, high: int, found: dict[Place, Bounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_of(Cluster(low=low, high=high), monkeypatch).bounds([PLACE]) == found


@pytest.mark.parametrize(
    ("since", "found"), [(5, {PLACE: 5}), (NO_RECORD, {PLACE: NO_RECORD}), (library.OFFSET_INVALID, {})]
)
def test_the_first_offset_since_a_time(
    since: int, found: dict[Place, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_of(Cluster(since=since), monkeypatch).offsets_since([PLACE], 1_700_000_000_000) == found


def test_a_topic_without_partitions_is_not_loaded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_of(Cluster(), monkeypatch).describe(["t"]) == {"t": None}


def test_a_leader_without_a_number_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(Cluster(low=0), monkeypatch)
    assert client.describe(["t"])["t"].partitions == 3
    assert client._leaderless == {("t", 1), ("t", 2)}


@pytest.mark.parametrize(("stated", "parent"), [(-1, None), (None, None), (7, 7)])
def test_a_parent_of_a_snapshot_that_is_a_sentinel_is_none(stated: int | None, parent: int | None) -> None:
    """The same rule holds for a catalog: some writers state -1 as the parent of a table's first snapshot."""
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": 9,
            "parent-snapshot-id": stated,
            "sequence-number": 1,
            "timestamp-ms": 5,
            "manifest-list": "m",
        }
    )
    assert _snapshot(snapshot).parent_id == parent
