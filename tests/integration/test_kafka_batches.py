"""The mirror stores a broker's record batches as they came, and gets the records that a plain consumer gets.

The other way, records one by one through the client library, must give the same.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import Producer

from intake.read.reader import IntakeReader
from intake.sources.kafka import wire
from tests.support.kafka import kafka_fixtures
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster, Site, numbered, upstream_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
server, cluster = kafka_fixtures.server, kafka_fixtures.cluster
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def site(server: KafkaServer) -> Site:
    return Site(server.brokers)


@pytest.fixture
def topic(server: KafkaServer) -> str:
    return server.new_name()


def stored_as_batches(site: Site, topic: str, partition: int = 0) -> set[bool]:
    """Whether the segments of a partition are record batches."""
    backlog, reader = site.backlog(), IntakeReader(site.objects)
    tp = (backlog.topics_by_name[topic].topic_id, partition)
    return {reader.batches(one.file, one.row_group) is not None for one in backlog.segments(tp)}


def check(site: Site, topic: str, partitions: int = 1) -> int:
    """Compare both sides; returns the number of records."""
    total = 0
    for partition in range(partitions):
        here = site.records(topic, partition)
        assert here == upstream_records(site.brokers, topic, partition)
        total += len(here)
    return total


def send_some(cluster: Cluster, topic: str, chance: random.Random, first: int) -> None:
    """Batches of every codec, with transactions that overlap, in three partitions."""
    for number, codec in enumerate(chance.sample(CODECS, len(CODECS))):
        one = first + 1000 * number
        with_codec = {"compression.type": codec, "linger.ms": "20"}
        held = [
            cluster.transaction(
                topic, numbered(one + 10 * place, chance.randrange(1, 9), chance.randrange(3))
            )
            for place in range(chance.randrange(3))
        ]
        records = [
            record
            for partition in range(3)
            for record in numbered(one + 100, chance.randrange(1, 60), partition)
        ]
        cluster.send(topic, records, **with_codec)
        for producer in chance.sample(held, len(held)):
            end(producer, commit=chance.random() < 0.5)


def end(producer: Producer, *, commit: bool) -> None:
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


@pytest.mark.parametrize("seed", range(2))
def test_batches_of_every_kind_are_mirrored_as_they_came(
    site: Site, cluster: Cluster, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    cluster.create(topic, 3)
    mirror = site.process(topic, delay_max=0.01)
    for round_number in range(3):
        send_some(cluster, topic, chance, 10_000 * round_number)
        for _ in range(chance.randrange(8)):
            mirror.step()
        if round_number == 1:  # another process continues
            mirror.close()
            mirror = site.process(topic, delay_max=0.01)
    cluster.send(topic, [record for partition in range(3) for record in numbered(99_000, 2, partition)])
    mirror.until_level(site, topic)
    assert check(site, topic, 3) > 300
    assert mirror.kinds == []
    assert [stored_as_batches(site, topic, partition) for partition in range(3)] == [{True}] * 3
    mirror.close()


def test_what_begins_within_a_batch_begins_with_its_record(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    stamps = [1_700_000_000_000 + 1000 * number for number in range(10)]
    cluster.send(
        topic,
        [{"value": b"%d" % stamp, "timestamp": stamp} for stamp in stamps],
        **{"linger.ms": "500", "compression.type": "zstd"},
    )
    cluster.send(topic, numbered(0, 5))
    mirror = site.process(topic, from_="2023-11-14T22:13:24Z")
    mirror.until_level(site, topic)
    mirror.close()
    assert site.records(topic) == upstream_records(site.brokers, topic)[4:]
    assert site.gaps(topic) == [(0, 4)]


def test_times_of_the_broker_in_large_batches(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 2, message_timestamp_type="LogAppendTime")
    mirror = site.process(topic)
    for codec in CODECS:
        records = numbered(0, 100) + numbered(0, 30, partition=1)
        cluster.send(topic, records, **{"compression.type": codec, "linger.ms": "20"})
    mirror.until_level(site, topic)
    assert check(site, topic, 2) == 650
    assert stored_as_batches(site, topic) == {False}
    mirror.close()


def test_of_a_compacted_topic_the_rest_of_each_batch_is_mirrored(
    site: Site, cluster: Cluster, topic: str
) -> None:
    """Batches with gaps, and whole ones behind them."""
    quick = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.001", "delete_retention_ms": "0"}
    cluster.create(topic, 1, cleanup_policy="compact", **quick)
    chance = random.Random(2)

    def send(rows: int) -> None:
        records: list[dict[str, Any]] = [
            {"key": b"%d" % chance.randrange(20), "value": b"%d" % number} for number in range(rows)
        ]
        cluster.send(topic, records, **{"linger.ms": "20", "compression.type": chance.choice(CODECS)})

    while len(upstream_records(site.brokers, topic)) in range(120) and not _has_gaps(site, topic):
        send(10)
    cluster.send(topic, [{"key": b"last-%d" % number, "value": b"v"} for number in range(5)])
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    mirror.close()
    here = {one.offset: one for one in site.records(topic)}
    there = upstream_records(site.brokers, topic)
    assert there and all(here[one.offset] == one for one in there)
    assert site.gaps(topic)


def _has_gaps(site: Site, topic: str) -> bool:
    offsets = [one.offset for one in upstream_records(site.brokers, topic)]
    return bool(offsets) and len(offsets) < offsets[-1] + 1


@pytest.mark.parametrize("why", ["its properties", "its version"])
def test_a_cluster_that_is_read_record_by_record_gives_the_same(
    site: Site, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    properties = {"broker.address.family": "v4"} if why == "its properties" else {}
    if why == "its version":
        monkeypatch.setattr(wire, "_REQUIRED", {wire.FETCH: 99})
    cluster.create(topic, 3)
    send_some(cluster, topic, random.Random(7), 0)
    mirror = site.process(topic, properties=properties)
    mirror.until_level(site, topic)
    send_some(cluster, topic, random.Random(8), 10_000)
    mirror.until_level(site, topic)
    assert check(site, topic, 3) > 100
    assert stored_as_batches(site, topic) == {False}
    mirror.close()
