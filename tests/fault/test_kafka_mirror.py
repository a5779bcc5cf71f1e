"""Kill the mirror, the broker, and what the broker keeps: every record that the broker had lands once, and
what it lost is reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from archiver.runtime import failpoints
from tests.support.kafka import kafka_fixtures
from tests.support.kafka.kafka_log import damage_batch, replace_in_batch
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirror_process import site_of
from tests.support.kafka.mirroring import Cluster, Site, data_folder, numbered, upstream_records
from tests.support.process.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 3
STEPS = ("writer.upload.before", "writer.upload.after", "writer.append.before", "writer.append.after")
"""Where the process dies: before and after each thing that a piece makes."""
server = kafka_fixtures.server


def command(root: Path, server: KafkaServer, topic: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.support.kafka.mirror_process",
        str(root),
        server.brokers,
        topic,
        "2000",
    ]


def die_at(root: Path, server: KafkaServer, topic: str, armed: str) -> None:
    """A process that dies at a step."""
    environ = {**os.environ, failpoints.VARIABLE: armed}
    done = subprocess.run(
        command(root, server, topic),
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def die_anywhere(root: Path, server: KafkaServer, topic: str, after_s: float) -> None:
    """A process that is killed from outside once it ingests something, at any step."""
    process = subprocess.Popen(command(root, server, topic), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("level"):
            assert process.poll() is None
        time.sleep(after_s)
    finally:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def finish(root: Path, server: KafkaServer, topic: str) -> None:
    """A process that lives ingests the rest; then both sides are compared."""
    site, logs = site_of(root, server.brokers)
    try:
        mirror = site.process(topic, checkpoint_entries=4)
        mirror.until_level(site, topic)
        mirror.close()
        for partition in range(PARTITIONS):
            assert site.records(topic, partition) == upstream_records(server.brokers, topic, partition)
        assert mirror.kinds == []
    finally:
        logs.close()


def fill(cluster: Cluster, topic: str, first: int) -> None:
    for partition in range(PARTITIONS):
        cluster.send(topic, numbered(first, 60, partition))
        cluster.transact(topic, numbered(first + 60, 30, partition), commit=partition != 1)


def test_a_mirror_that_is_killed_at_every_step_lands_everything_once(
    tmp_path: Path, server: KafkaServer
) -> None:
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic, PARTITIONS)
    for number, step in enumerate(STEPS):
        fill(cluster, topic, 1000 * number)
        die_at(tmp_path, server, topic, f"{step}=kill")
    for number in range(4):
        fill(cluster, topic, 1000 * (len(STEPS) + number))
        die_anywhere(tmp_path, server, topic, 0.05 * number)
    finish(tmp_path, server, topic)


def test_a_broker_that_is_killed_and_comes_back_loses_nothing_here(
    tmp_path: Path, server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic, PARTITIONS)
    site = Site(server.brokers)
    mirror = site.process(topic, request_timeout=5)
    fill(cluster, topic, 0)
    mirror.until_level(site, topic)
    server.kill()
    stopped = threading.Event()

    def step_on() -> None:
        while not stopped.is_set():
            mirror.step()

    stepping = threading.Thread(target=step_on)
    stepping.start()
    try:
        # No fixed time: a busy machine may need longer to notice.
        until("the mirror reports it", lambda: "nothing is ingested" in caplog.text)
        server.start()
        fill(cluster, topic, 1000)
    finally:
        stopped.set()
        stepping.join(60)
    mirror.until_level(site, topic)
    mirror.until(lambda: "works again" in caplog.text, "the line that says so")
    mirror.close()
    assert mirror.kinds == []
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("intake.sources")]
    # A busy machine may take a slow answer for a second outage.
    assert len(lines) < 25, lines
    for partition in range(PARTITIONS):
        assert site.records(topic, partition) == upstream_records(server.brokers, topic, partition)
    assert len(site.records(topic, 0)) == 180


def lose_tail(server: KafkaServer, cluster: Cluster, topic: str, kept: Path) -> None:
    """The broker comes back with the partition as it was when `kept` was copied: what was acknowledged later
    is lost."""
    server.stop()
    live = data_folder(server.data, topic, 0)
    shutil.rmtree(live)
    shutil.copytree(kept, live)
    for name in (
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        ".kafka_cleanshutdown",
    ):
        (server.data / name).unlink(missing_ok=True)
    server.start()


def test_records_where_markers_were_are_a_finding(tmp_path: Path, server: KafkaServer) -> None:
    """What was lost held no record that is here, so the last record proves nothing; but what stands there now
    was not there before."""
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic)
    site = Site(server.brokers)
    cluster.send(topic, numbered(0, 10))
    server.stop()
    shutil.copytree(data_folder(server.data, topic, 0), tmp_path / "kept")
    server.start()
    cluster.transact(topic, numbered(10, 3), commit=False)
    mirror = site.process(topic, request_timeout=5)
    mirror.until_level(site, topic)
    mirror.close()
    assert site.position(topic) == 14
    before = site.records(topic)
    lose_tail(server, cluster, topic, tmp_path / "kept")
    cluster.send(topic, numbered(500, 30))
    mirror = site.process(topic, request_timeout=5)
    mirror.until(lambda: mirror.kinds == [(f"{topic}:0", "diverged")], "the finding")
    for _ in range(5):
        mirror.step()
    mirror.close()
    assert site.records(topic) == before and site.position(topic) == 14


def test_a_header_whose_name_is_no_text_stops_its_partition_before_it(
    tmp_path: Path, server: KafkaServer
) -> None:
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic)
    for first in (0, 5, 10):
        cluster.send(topic, [{"value": b"%d" % first, "headers": [(f"name-{first}", b"1")]}])
    server.stop()
    replace_in_batch(data_folder(server.data, topic, 0), 1, b"name-5", b"name-\xff")
    server.start()
    site = Site(server.brokers)
    mirror = site.process(topic, request_timeout=5)
    mirror.until(lambda: mirror.kinds == [(f"{topic}:0", "unstorable")], "the finding")
    mirror.until(lambda: mirror.state.records == 1, "what is before it")
    mirror.close()
    assert (site.position(topic), [one.value for one in site.records(topic)]) == (1, [b"0"])
    assert "UTF-8" in mirror.state.findings[0].why


def test_a_damaged_batch_stops_its_partition_before_it(tmp_path: Path, server: KafkaServer) -> None:
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic, 2)
    for first in (0, 5, 10):
        cluster.send(topic, numbered(first, 5) + numbered(first, 5, partition=1))
    there = upstream_records(server.brokers, topic)
    server.stop()
    damage_batch(data_folder(server.data, topic, 0), 1)
    server.start()
    site = Site(server.brokers)
    mirror = site.process(topic, request_timeout=5)
    mirror.until(lambda: mirror.kinds == [(f"{topic}:0", "unreadable")], "the finding")
    mirror.until(lambda: len(site.records(topic, 1)) == 15, "the other partition")
    cluster.send(topic, numbered(15, 5, partition=1))
    mirror.until(lambda: len(site.records(topic, 1)) == 20, "the other partition, later")
    mirror.close()
    found = site.records(topic)
    assert found == there[: len(found)] and len(found) < 15
    assert site.position(topic) == len(found)
    assert "damaged" in mirror.state.findings[0].why and "CRC" in mirror.state.findings[0].why


def test_a_partition_without_a_leader_stops_no_other(tmp_path: Path) -> None:
    """One of the broker's two disks is gone: the partitions on it have no leader."""
    folder = tmp_path / "kafka"
    disks = [folder / "data", folder / "more"]
    with KafkaServer(folder, {"log.dirs": ",".join(map(str, disks))}) as server:
        cluster, topic = Cluster(server.brokers), server.new_name()
        cluster.create(topic, 4)
        for number in range(4):
            cluster.send(topic, numbered(0, 5, number))
        lost = [number for number in range(4) if data_folder(disks[1], topic, number).exists()]
        assert 0 < len(lost) < 4
        server.stop()
        shutil.rmtree(disks[1])
        disks[1].write_text("a disk that is broken")
        server.start()
        site = Site(server.brokers)
        mirror = site.process(topic, request_timeout=5)
        mirror.until(lambda: mirror.state.records == 5 * (4 - len(lost)), "what has a leader")
        mirror.until(lambda: len(mirror.kinds) == len(lost), "the findings")
        mirror.close()
        assert mirror.kinds == [(f"{topic}:{number}", "unreadable") for number in lost]


@pytest.mark.turns(2)
@pytest.mark.parametrize("overtaken", [False, True])
def test_a_cluster_that_lost_records_which_are_here_is_a_finding(
    tmp_path: Path, server: KafkaServer, overtaken: bool
) -> None:
    """Even where it has since given their offsets to others, so that no offset shows it: then the leader
    epoch does."""
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic)
    site = Site(server.brokers)
    cluster.send(topic, numbered(0, 10))
    server.stop()
    shutil.copytree(data_folder(server.data, topic, 0), tmp_path / "kept")
    server.start()
    cluster.send(topic, numbered(10, 10))
    mirror = site.process(topic, request_timeout=5)
    mirror.until_level(site, topic)
    mirror.close()
    before = site.records(topic)
    assert len(before) == 20
    lose_tail(server, cluster, topic, tmp_path / "kept")
    if overtaken:
        cluster.send(topic, numbered(500, 30))
    mirror = site.process(topic, request_timeout=5)
    mirror.until(
        lambda: mirror.kinds == [(f"{topic}:0", "diverged" if overtaken else "behind")], "the finding"
    )
    for _ in range(5):
        mirror.step()
    mirror.close()
    assert site.records(topic) == before
