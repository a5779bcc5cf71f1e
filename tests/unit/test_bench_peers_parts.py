"""Does bench/peers let no contender begin early, configure the archiver, and compare equal repetitions?"""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from archiver.config.settings import load_settings
from bench.peers.__main__ import Run, Setup, outcome
from bench.peers.ours import Archiver, Door
from bench.peers.own_intake import OwnIntake


def test_no_client_gets_through_before_the_port_is_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as behind:
        door = Door(f"127.0.0.1:{behind.getsockname()[1]}")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", door.port))
        door.open()

        def answer() -> None:
            connection, _ = behind.accept()
            with connection:
                connection.sendall(connection.recv(100)[::-1])

        answering = threading.Thread(target=answer)
        answering.start()
        with socket.create_connection(("127.0.0.1", door.port)) as client:
            client.sendall(b"abc")
            assert client.recv(100) == b"cba"
        answering.join()
        door.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", door.port))


def test_the_archiver_mirrors_both_topics_into_tables_as_fresh_as_it_is_asked_to(tmp_path: Path) -> None:
    settings = load_settings(
        Archiver("127.0.0.1:9", tmp_path / "ours", 2, 10).configure(["warm", "orders"]), os.environ
    )
    assert [topic.archive.table for topic in settings.topics] == ["bench.warm", "bench.orders"]
    assert settings.archive.complete_delay_max == 10
    sources = [source.kafka for source in settings.sources]
    assert [(source.name, source.topics) for source in sources if source is not None] == [
        ("warm", "warm"),
        ("orders", "orders"),
    ]


def test_own_intake_is_held_back_topic_by_topic_until_it_may_begin(tmp_path: Path) -> None:
    contender = OwnIntake("127.0.0.1:9", tmp_path / "own", 2, 10)
    configuration = contender.configure(["warm", "orders"])

    def due() -> dict[str, int]:
        settings = load_settings(configuration, os.environ)
        assert not settings.sources
        return {topic.name: settings.archive.of(topic).min_bytes for topic in settings.topics}

    assert due() == {"warm": -1, "orders": -1}
    reported: list[int] = []
    contender._process = cast("Any", SimpleNamespace(send_signal=reported.append))
    contender.begin("warm")
    assert reported == [signal.SIGHUP]
    assert due() == {"warm": 0, "orders": -1}


def test_a_ratio_is_of_one_repetition() -> None:
    def run(cpu_s: float, before_cpu_s: float = 0.0) -> Run:
        return Run({}, {"jvm": cpu_s / 2, "workers": cpu_s / 2}, 1.0, cpu_s, 0.5, 1, 100, {}, before_cpu_s)

    setup = Setup(["archiver", "own_intake", "sink", "libraries"], 1000, 3, [0, 1], 10)
    runs = {
        "own_intake": [run(0.5, 0.5), run(2.0, 5.0), run(3.0, 1.0)],
        "archiver": [run(1.0), run(2.0), run(4.0)],
        "sink": [run(5.0), run(14.0), run(24.0)],
        "libraries": [run(0.5), run(2.0), run(3.0)],
    }
    document = outcome(setup, runs, 139_000, {"rows": 1000}, (0.0, 0.0, 0.0))
    assert document["archiver_by_peer"] == {
        "own_intake": {"min": 0.5, "median": 0.75, "max": 1.0},
        "sink": {"min": 5.0, "median": 6.0, "max": 7.0},
        "libraries": {"min": 0.5, "median": 0.75, "max": 1.0},
    }
    for whose in ("libraries", "own_intake"):
        assert document[f"{whose}_by_peer"] == {"sink": {"min": 7.0, "median": 8.0, "max": 10.0}}
    assert document["own_intake_with_its_writer_by_peer"] == {"sink": {"min": 2.0, "median": 5.0, "max": 6.0}}
    assert (document["reached"], document["reached_from_own_intake"]) == ({"sink": True}, {"sink": True})
    assert document["contenders"]["archiver"]["records_per_core_second"] == {
        "min": 250.0,
        "median": 500.0,
        "max": 1000.0,
    }
    assert document["contenders"]["sink"]["cpu_s"]["jvm"]["max"] == 12.0
