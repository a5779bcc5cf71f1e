"""The mirror on a real broker ingests exactly the broker's records, bit for bit, each once, through
everything a broker may do.

The broker's records are read independently (`tests.support.kafka.mirroring`), and compared whole.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import pytest

from archiver.runtime.clock import SystemClock
from archiver.spark.java import require_java
from intake.sources.kafka.client import KafkaClient
from intake.sources.kafka.upstream import Bounds, Place
from tests.support.kafka import kafka_fixtures
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster, Mirroring, Site, numbered, upstream_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
server, cluster = kafka_fixtures.server, kafka_fixtures.cluster


@pytest.fixture
def site(server: KafkaServer) -> Site:
    return Site(server.brokers)


@pytest.fixture
def topic(server: KafkaServer) -> str:
    return server.new_name()


class Ahead(SystemClock):
    """The machine's clocks, advanced by the test: what waits for hours is due at once, and nothing is due
    before."""

    ahead_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.ahead_s * 1e6)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def has_in_hand(mirror: Mirroring, rows: int) -> bool:
    return mirror.mirror._piece.rows >= rows


def same(site: Site, topic: str, partitions: int = 1) -> int:
    """Compare both sides whole; returns the number of records."""
    total = 0
    for partition in range(partitions):
        here, there = site.records(topic, partition), upstream_records(site.brokers, topic, partition)
        assert here == there
        total += len(here)
    return total


def test_records_land_with_everything_they_have(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 3)
    stamped = [{"value": b"old", "timestamp": 1}, {"value": b"new", "timestamp": 4_102_444_800_123}]
    cluster.send(topic, stamped + [one for partition in range(3) for one in numbered(0, 200, partition)])
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    assert same(site, topic, 3) == 602
    assert [one.timestamp_ms for one in site.records(topic)[:2]] == [1, 4_102_444_800_123]
    assert site.gaps(topic) == []
    assert (mirror.state.topics, mirror.state.partitions, mirror.kinds, mirror.state.trouble) == (
        1,
        3,
        [],
        None,
    )
    mirror.close()


def test_append_time_is_the_brokers(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, message_timestamp_type="LogAppendTime")
    cluster.send(topic, [{"value": b"x", "timestamp": 5}])
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    assert same(site, topic) == 1
    assert abs(site.records(topic)[0].timestamp_ms - time.time() * 1000) < 600_000
    mirror.close()


def test_aborted_records_and_markers_are_gaps(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.send(topic, numbered(0, 3))
    cluster.transact(topic, numbered(10, 4), commit=False)
    cluster.transact(topic, numbered(20, 2), commit=True)
    held = cluster.transaction(topic, numbered(30, 5))
    cluster.send(topic, numbered(40, 1))
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    assert same(site, topic) == 5
    assert site.gaps(topic) == [(3, 8)]
    assert site.position(topic) == 11  # after the marker of the second transaction, before the open one
    cluster.end(held, topic, commit=True)
    mirror.until_level(site, topic)
    assert same(site, topic) == 11
    assert site.gaps(topic) == [(3, 8), (10, 11)]
    assert site.position(topic) == 18
    mirror.close()


def test_what_compaction_took_is_a_gap(site: Site, cluster: Cluster, topic: str) -> None:
    quick = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.001", "delete_retention_ms": "0"}
    cluster.create(topic, 1, cleanup_policy="compact", **quick)
    for number in range(30):
        cluster.send(
            topic,
            [
                {"key": b"one", "value": b"%d" % number},
                {"key": b"%d" % (number % 7), "value": b"v%d" % number},
            ],
        )
    deadline = time.monotonic() + 200
    while len(upstream_records(site.brokers, topic)) > 30:
        assert time.monotonic() < deadline, "the broker compacts nothing"
        time.sleep(0.3)
        cluster.send(topic, [{"key": b"one", "value": b"later"}])
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    mirror.close()
    # The broker continues to compact, but all that it still has was mirrored.
    here = {one.offset: one for one in site.records(topic)}
    assert all(here[one.offset] == one for one in upstream_records(site.brokers, topic))
    assert len(site.gaps(topic)) > 3


def test_partitions_and_topics_that_come_later_begin_at_their_first_record(
    site: Site, cluster: Cluster, topic: str
) -> None:
    cluster.create(f"{topic}.a")
    cluster.send(f"{topic}.a", numbered(0, 5))
    mirror = site.process(f"{topic}[.].*", from_="latest")
    mirror.until(lambda: mirror.state.partitions == 1)
    cluster.grow(f"{topic}.a", 3)
    cluster.send(f"{topic}.a", numbered(5, 5) + numbered(0, 5, partition=2))
    cluster.create(f"{topic}.b", 2)
    cluster.create(f"x{topic}.b", 2)
    cluster.send(f"{topic}.b", numbered(0, 9, partition=1))
    mirror.until(lambda: mirror.state.partitions == 5)
    mirror.until_level(site, f"{topic}.a", f"{topic}.b")
    mirror.close()
    assert site.records(f"{topic}.a") == upstream_records(site.brokers, f"{topic}.a")[5:]
    assert site.gaps(f"{topic}.a") == [(0, 5)]
    assert same_partition(site, f"{topic}.a", 2) == 5
    assert same(site, f"{topic}.b", 2) == 9
    assert sorted(name for name in site.backlog().topics_by_name if topic in name) == [
        f"{topic}.a",
        f"{topic}.b",
    ]


def same_partition(site: Site, topic: str, partition: int) -> int:
    here = site.records(topic, partition)
    assert here == upstream_records(site.brokers, topic, partition)
    return len(here)


def test_a_topic_that_grows_while_it_is_mirrored_puts_nothing_into_another(
    site: Site, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A piece holds records of the new partition, and then some of an old one alone."""
    grown, other = f"{topic}.a", f"{topic}.b"
    cluster.create(grown)
    cluster.create(other, 3)
    cluster.send(grown, numbered(0, 5))
    mirror = site.process(f"{topic}.*", delay_max=2)
    mirror.until_level(site, grown, other)
    cluster.grow(grown, 3)
    mirror.until(lambda: mirror.state.partitions == 6, "the new partitions")
    mirror.mirror._inspect_at_s = float("inf")  # an inspection would begin another piece
    cluster.send(grown, numbered(0, 10, partition=2))
    mirror.until(partial(has_in_hand, mirror, 10), "the records of the new partition")
    cluster.send(grown, numbered(5, 10))
    mirror.until(partial(has_in_hand, mirror, 20), "those of the old one, in the same piece")
    mirror.until_level(site, grown, other)
    mirror.close()
    assert (same(site, grown, 3), same(site, other, 3)) == (25, 0)
    assert "nothing is ingested" not in caplog.text, "no piece was refused"


def test_an_inspection_publishes_the_open_piece_before_it_finds_a_grown_topic(
    site: Site, cluster: Cluster, topic: str
) -> None:
    """An inspection reads on from the log's positions, so a piece that it left open would be read twice."""
    cluster.create(topic)
    mirror = site.process(topic, delay_max=600)  # no piece is published because of its age
    mirror.until(lambda: mirror.state.partitions == 1, "the first inspection")
    cluster.send(topic, numbered(0, 10))
    mirror.until(partial(has_in_hand, mirror, 10), "the records")
    assert site.position(topic) == 0, "they are not in the log"
    cluster.grow(topic, 3)
    mirror.mirror._inspect_at_s = 0.0
    mirror.until(lambda: mirror.state.partitions == 3, "the new partitions")
    assert site.position(topic) == 10
    mirror.close()
    assert same(site, topic, 3) == 10


class Slow(KafkaClient):
    """A connection that runs an action elsewhere before the first request for offsets."""

    meanwhile: Callable[[], None] | None = None

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().bounds(places)


def test_a_partition_that_another_process_has_begun_is_not_begun_again(
    site: Site, cluster: Cluster, topic: str
) -> None:
    """This holds even at 0, where the position is as if no process had begun."""
    cluster.create(topic)
    first = site.process(topic, from_="latest", delay_max=60)

    def begun_elsewhere() -> None:
        first.until(lambda: first.state.partitions == 1, "a beginning")
        cluster.send(topic, numbered(0, 5))

    slow: Slow
    second = site.process(topic, from_="latest", connect=lambda: slow)
    slow = Slow(second.settings, site.clock)
    slow.meanwhile = begun_elsewhere
    second.until(lambda: second.state.partitions == 1, "a look")
    second.until_level(site, topic)
    for one in (first, second):
        one.close()
    assert same(site, topic) == 5


class Mute(KafkaClient):
    """A cluster that does not report the offsets of one partition."""

    of: Place | None = None
    looks = 0

    def topics(self) -> list[str]:
        self.looks += 1
        return super().topics()

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        return {place: one for place, one in super().bounds(places).items() if place != self.of}


def test_a_partition_that_reports_no_offsets_is_asked_again_soon_and_then_seldom(
    site: Site, cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, 2)
    site.clock = clock = Ahead()
    mute: Mute
    mirror = site.process(topic, discover_interval=3600, connect=lambda: mute)
    mute = Mute(mirror.settings, site.clock)
    mute.of = (topic, 1)
    mirror.until(lambda: mirror.kinds == [(f"{topic}:1", "unreadable")], "the finding")
    before = mute.looks
    for _ in range(60):
        clock.ahead_s += 60
        mirror.step()
    assert 5 <= mute.looks - before <= 13, (
        "after 1, 2, 4, … seconds: a dozen looks in the first hour, not one each second"
    )
    mute.of = None
    clock.ahead_s += 3600
    mirror.until(lambda: mirror.state.partitions == 2, "a look")
    mute.of = (topic, 1)  # an election, while it is read
    clock.ahead_s += 3600
    mirror.until(lambda: mirror.state.partitions == 1, "a look")
    mute.of = None
    clock.ahead_s += 1
    mirror.until(lambda: mirror.state.partitions == 2, "the next, a second later")
    mirror.close()


def test_from_is_followed_for_a_partition_that_was_there_and_told_nothing(
    site: Site, cluster: Cluster, topic: str
) -> None:
    cluster.create(f"{topic}.a", 2)
    cluster.send(f"{topic}.a", numbered(0, 5) + numbered(0, 5, partition=1))
    mute: Mute
    mirror = site.process(f"{topic}.*", from_="latest", connect=lambda: mute)
    mute = Mute(mirror.settings, site.clock)
    mute.of = (f"{topic}.a", 1)
    mirror.until(lambda: mirror.state.partitions == 1, "the other partition")
    cluster.create(f"{topic}.b")
    cluster.send(f"{topic}.b", numbered(0, 7))
    mirror.until(lambda: mirror.state.records == 7, "what came later, from its first record on")
    mute.of = None
    mirror.until(lambda: mirror.state.partitions == 3, "all")
    cluster.send(f"{topic}.a", numbered(5, 5, partition=1))
    mirror.until_level(site, f"{topic}.a", f"{topic}.b")
    mirror.close()
    assert [one.offset for one in site.records(f"{topic}.a", 1)] == [5, 6, 7, 8, 9]
    assert same(site, f"{topic}.b") == 7


def test_with_more_partitions_than_may_be_those_that_were_begun_go_on(
    site: Site, cluster: Cluster, topic: str
) -> None:
    cluster.create(f"{topic}.b", 2)
    mirror = site.process(f"{topic}.*", partitions_max=2)
    mirror.until(lambda: mirror.state.partitions == 2)
    cluster.create(f"{topic}.a")
    mirror.until(lambda: mirror.kinds == [(f"{topic}.a", "refused")], "the finding")
    cluster.send(f"{topic}.b", numbered(0, 5))
    mirror.until_level(site, f"{topic}.b")
    mirror.close()
    assert same(site, f"{topic}.b", 2) == 5


def test_it_begins_at_a_time_once(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 2)
    stamps = [1_700_000_000_000 + 1000 * number for number in range(10)]
    cluster.send(topic, [{"value": b"%d" % stamp, "timestamp": stamp} for stamp in stamps])
    mirror = site.process(topic, from_="2023-11-14T22:13:24Z")
    mirror.until_level(site, topic)
    mirror.close()
    assert [one.timestamp_ms for one in site.records(topic)] == stamps[4:]
    cluster.send(topic, numbered(0, 3))
    again = site.process(topic, from_="latest")  # changes nothing: the log has its begin already
    again.until_level(site, topic)
    again.close()
    assert site.records(topic) == upstream_records(site.brokers, topic)[4:]


def test_a_topic_made_anew_is_a_finding(site: Site, cluster: Cluster, topic: str) -> None:
    other = f"{topic}.other"
    for name in (topic, other):
        cluster.create(name)
        cluster.send(name, numbered(0, 5))
    mirror = site.process(f"{topic}.*")
    mirror.until_level(site, topic, other)
    before = site.records(topic)
    cluster.delete(topic)
    mirror.until(lambda: mirror.kinds == [(topic, "gone")], "the finding")
    cluster.create(topic)
    cluster.send(topic, numbered(100, 50))  # more than there were: no offset shows it
    mirror.until(lambda: mirror.kinds == [(topic, "recreated")], "the finding")
    cluster.send(other, numbered(5, 5))
    mirror.until_level(site, other)
    assert same(site, other) == 10
    assert site.records(topic) == before
    mirror.close()
    fresh = site.process(f"{topic}.*")
    fresh.until(lambda: fresh.kinds == [(topic, "recreated")], "the finding of a process that has just begun")
    fresh.close()
    assert site.records(topic) == before


def test_a_topic_made_anew_between_two_looks_gives_nothing(site: Site, cluster: Cluster, topic: str) -> None:
    """Only the request before each piece shows it: the position is within the new topic, and the next
    inspection is an hour away."""
    cluster.create(topic)
    cluster.send(topic, numbered(0, 5))
    mirror = site.process(topic, discover_interval=3600)
    mirror.until_level(site, topic)
    before = site.records(topic)
    cluster.delete(topic)
    cluster.create(topic)
    cluster.send(topic, numbered(100, 50))
    mirror.until(lambda: mirror.kinds == [(topic, "recreated")], "the finding")
    assert site.records(topic) == before
    mirror.close()


def test_deleted_records_that_were_not_read_are_a_finding(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 2)
    cluster.send(topic, numbered(0, 10) + numbered(0, 10, partition=1))
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    mirror.close()
    cluster.send(topic, numbered(10, 10) + numbered(10, 10, partition=1))
    cluster.delete_records(topic, 0, 15)
    mirror = site.process(topic)
    mirror.until(lambda: mirror.kinds == [(f"{topic}:0", "truncated")], "the finding")
    mirror.until(lambda: mirror.state.records == 10, "the other partition")
    assert "15" in mirror.state.findings[0].why and "10" in mirror.state.findings[0].why
    mirror.close()
    assert len(site.records(topic, 0)) == 10 and same_partition(site, topic, 1) == 20
    given_up = site.process(topic, lost={f"{topic}:0": 15})
    given_up.until_level(site, topic)
    given_up.close()
    assert [one.offset for one in site.records(topic, 0)] == [*range(10), *range(15, 20)]
    assert site.gaps(topic) == [(10, 15)]
    assert given_up.kinds == []


def test_a_log_that_was_read_and_is_deleted_is_no_finding(site: Site, cluster: Cluster, topic: str) -> None:
    """This includes a log that ends in a marker: it was read to its end."""
    cluster.create(topic)
    cluster.transact(topic, numbered(0, 5), commit=True)
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    cluster.delete_records(topic, 0, 6)
    mirror.close()
    mirror = site.process(topic)
    cluster.send(topic, numbered(5, 5))
    mirror.until(lambda: mirror.state.records == 5, "what came later")
    mirror.close()
    assert mirror.kinds == [] and len(site.records(topic)) == 10


def test_a_record_that_cannot_be_stored_stops_its_partition_before_it(
    site: Site, cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, 2, max_message_bytes="2000000")
    large = {"value": b"x" * 100_000}
    cluster.send(
        topic,
        [*numbered(0, 3), large, *numbered(4, 3), *numbered(0, 8, partition=1)],
        **{"message.max.bytes": "2000000"},
    )
    mirror = site.process(topic, record_bytes_max=50_000)
    mirror.until(lambda: mirror.state.records == 11, "what can be stored")
    assert mirror.kinds == [(f"{topic}:0", "unstorable")]
    assert "offset 3" in mirror.state.findings[0].why and "record_bytes_max" in mirror.state.findings[0].why
    mirror.close()
    assert len(site.records(topic, 0)) == 3 and same_partition(site, topic, 1) == 8
    more = site.process(topic)
    more.until_level(site, topic)
    more.close()
    assert same(site, topic, 2) == 15


def test_a_finding_ends_with_the_topic_it_is_about(site: Site, cluster: Cluster, topic: str) -> None:
    """An operator who deletes the topic here and mirrors it again need not restart."""
    cluster.create(topic)
    cluster.send(topic, [*numbered(0, 3), {"value": b"x" * 5000}, *numbered(4, 3)])
    mirror = site.process(topic, record_bytes_max=2000)
    mirror.until(lambda: mirror.kinds == [(f"{topic}:0", "unstorable")], "the finding")
    cluster.delete_records(topic, 0, 4)
    mirror.sequencer.delete_topic(mirror.sequencer.fold.topics_by_name[topic].topic_id)
    mirror.sequencer.declare_topic(topic, 1, again=True, mirrored=True)
    mirror.until_level(site, topic)
    mirror.close()
    assert mirror.kinds == []
    assert [one.offset for one in site.records(topic)] == [4, 5, 6]


def test_two_that_mirror_the_same_land_everything_once(
    site: Site, cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "intake.sources.kafka.mirror")
    cluster.create(topic, 3)
    site.clock = clock = Ahead()
    pair = [site.process(topic, delay_max=300, discover_interval=3600) for _ in range(2)]
    for mirror in pair:  # an inspection while a piece is in memory would publish it
        mirror.until(lambda one=mirror: one.state.partitions == 3, "all partitions")  # type: ignore[misc]
    for number in range(6):
        first, second = pair if number % 2 else reversed(pair)
        cluster.send(topic, [one for partition in range(3) for one in numbered(50 * number, 50, partition)])
        for mirror in pair:  # both have read it before either ingests it
            mirror.until(partial(has_in_hand, mirror, 150), "the records of a round")
        clock.ahead_s += 301
        first.step()
        second.step()
    for mirror in pair:
        mirror.until_level(site, topic)
        mirror.close()
    assert same(site, topic, 3) == 900
    assert [mirror.state.records for mirror in pair] == [450, 450]
    races = [one for one in caplog.records if "another process" in one.getMessage()]
    assert len(races) >= 6
    assert sum(one.levelname == "INFO" for one in races) == len(pair), (
        "once in each process: races are normal between two"
    )
    news = [one.getMessage() for one in caplog.records if one.levelname == "INFO"]
    # A new partition may be without a leader for a moment, and then comes after the others.
    counts = [int(found[1]) for one in news if (found := re.search(r" (\d+) partitions? more$", one))]
    assert sum(counts) == 3 * len(pair), "partitions are news once"


def test_nothing_is_committed_to_the_cluster(site: Site, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.send(topic, numbered(0, 5))
    mirror = site.process(topic)
    mirror.until_level(site, topic)
    mirror.close()
    assert [one.group_id for one in cluster.admin.list_consumer_groups().result(30).valid] == []


def test_a_cluster_that_is_away_is_said_and_waited_for(site: Site, topic: str) -> None:
    site.brokers = "127.0.0.1:9"
    mirror = site.process(topic, request_timeout=1)
    mirror.step()
    assert mirror.state.trouble is not None and "cluster" in mirror.state.trouble
    mirror.close()


def test_properties_that_make_no_client_are_said(site: Site, topic: str) -> None:
    mirror = site.process(topic, properties={"no.such.property": "x"})
    mirror.step()
    assert mirror.state.trouble is not None and "no.such.property" in mirror.state.trouble
    mirror.close()


def test_over_tls_a_server_is_verified(tmp_path: Path) -> None:
    """The mirror trusts only brokers that its `ssl.ca.location` vouches for."""
    store, ca_file = certified(tmp_path)
    secured = {
        "ssl.keystore.location": store,
        "ssl.keystore.password": _STORE_PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "ssl.truststore.location": ca_file,
        "ssl.truststore.type": "PEM",
    }
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(ca_file)}
    with KafkaServer(tmp_path / "kafka", secured, listener="SSL") as server:
        cluster, site, topic = Cluster(server.brokers, **trusting), Site(server.brokers), server.new_name()
        cluster.create(topic)
        cluster.send(topic, numbered(0, 20))
        stranger = site.process(topic, properties={"security.protocol": "SSL"}, request_timeout=3)
        stranger.step()
        assert stranger.state.trouble is not None and stranger.state.records == 0
        mirror = site.process(topic, properties=trusting)
        mirror.until(lambda: mirror.state.records == 20, "the records")
        mirror.close()
        assert site.records(topic) == upstream_records(server.brokers, topic, 0, **trusting)


_STORE_PASSWORD = "of-a-test-key"


def certified(folder: Path) -> tuple[Path, Path]:
    """A key with a certificate of its own for 127.0.0.1, and that certificate."""
    store, ca_file = folder / "keys.p12", folder / "ca.pem"
    keytool = str(require_java(os.environ).executable.with_name("keytool"))
    common = [
        "-keystore",
        str(store),
        "-storetype",
        "PKCS12",
        "-storepass",
        _STORE_PASSWORD,
        "-alias",
        "broker",
    ]
    names = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-ext", "bc=ca:true", "-validity", "2"]
    for asked in (["-genkeypair", "-keyalg", "RSA", *names], ["-exportcert", "-rfc", "-file", str(ca_file)]):
        subprocess.run([keytool, *asked, *common], check=True, capture_output=True, timeout=60)
    return store, ca_file
