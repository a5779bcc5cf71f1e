"""Kill the mirror, the broker, and what the broker keeps: every record that the broker had lands once, and what it lost is said."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver import failpoints
from tests.support.kafka_server import KafkaServer
from tests.support.mirror_process import site_of
from tests.support.mirroring import Cluster, Site, data_folder, numbered, upstream_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 3
STEPS = ("writer.upload.before", "writer.upload.after", "writer.append.before", "writer.append.after")
"""Where the process dies: before and after each thing that a piece makes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def command(root: Path, server: KafkaServer, topic: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.mirror_process", str(root), server.brokers, topic, "2000"]


def die_at(root: Path, server: KafkaServer, topic: str, armed: str) -> None:
    """A process that dies at a step."""
    environ = {**os.environ, failpoints.VARIABLE: armed}
    done = subprocess.run(command(root, server, topic), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def die_anywhere(root: Path, server: KafkaServer, topic: str, after_s: float) -> None:
    """A process that is killed from outside once it takes something in, whatever it does just then."""
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
    """A process that lives takes in the rest; then both sides are compared."""
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


def test_a_mirror_that_is_killed_at_every_step_lands_everything_once(tmp_path: Path, server: KafkaServer) -> None:
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic, PARTITIONS)
    for number, step in enumerate(STEPS):
        fill(cluster, topic, 1000 * number)
        die_at(tmp_path, server, topic, f"{step}=kill")
    for number in range(4):
        fill(cluster, topic, 1000 * (len(STEPS) + number))
        die_anywhere(tmp_path, server, topic, 0.05 * number)
    finish(tmp_path, server, topic)


def test_a_broker_that_is_killed_and_comes_back_loses_nothing_here(tmp_path: Path, server: KafkaServer) -> None:
    cluster, topic = Cluster(server.brokers), server.new_name()
    cluster.create(topic, PARTITIONS)
    site = Site(server.brokers)
    mirror = site.process(topic, request_timeout=2)
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
        time.sleep(3)
        server.start()
        fill(cluster, topic, 1000)
    finally:
        stopped.set()
        stepping.join(60)
    mirror.until_level(site, topic)
    mirror.close()
    assert mirror.kinds == []
    for partition in range(PARTITIONS):
        assert site.records(topic, partition) == upstream_records(server.brokers, topic, partition)
    assert len(site.records(topic, 0)) == 180


def lose_tail(server: KafkaServer, cluster: Cluster, topic: str, kept: Path) -> None:
    """The broker comes back with the partition as it was when `kept` was copied: what was acknowledged later is lost."""
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


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_cluster_that_lost_records_which_are_here_is_a_finding(tmp_path: Path, server: KafkaServer, overtaken: bool) -> None:
    """Even where it has given their offsets to others meanwhile, so that no offset tells: then the leader epoch does."""
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
    mirror.until(lambda: mirror.kinds == [(f"{topic}:0", "diverged" if overtaken else "behind")], "the finding")
    for _ in range(5):
        mirror.step()
    mirror.close()
    assert site.records(topic) == before
