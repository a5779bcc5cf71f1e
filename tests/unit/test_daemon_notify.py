"""systemd's notification protocol, received on a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from archiver.daemon.notify import EXTEND_S, Notifier
from archiver.runtime.clock import ManualClock


class Manager:
    """The receiver: the socket on which a service manager listens."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(address)

    def reported(self) -> list[dict[str, str]]:
        """Every datagram that was received, as names and values."""
        found: list[dict[str, str]] = []
        while True:
            try:
                text = self.socket.recv(4096).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in text.splitlines()))


@pytest.fixture
def abstract() -> str:
    return f"archiver-test-{os.getpid()}"


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, abstract: str) -> Iterator[tuple[Manager, str]]:
    path = tmp_path / "notify"
    address, name = (str(path), str(path)) if request.param == "path" else ("\0" + abstract, "@" + abstract)
    made = Manager(address)
    yield made, name
    made.socket.close()


def test_a_life_as_the_manager_sees_it(manager: tuple[Manager, str]) -> None:
    other, name = manager
    clock = ManualClock()
    clock.advance(12.5)
    notifier = Notifier({"NOTIFY_SOCKET": name}, clock)
    notifier.waiting("waiting for metadata (it is\nabsent)")
    notifier.waiting("waiting for metadata (it is\nabsent)")
    notifier.ready("serving as archive")
    notifier.reloading()
    notifier.ready("serving as archive")
    notifier.stopping("stopping")
    notifier.longer(90)
    assert other.reported() == [
        {"EXTEND_TIMEOUT_USEC": "60000000", "STATUS": "waiting for metadata (it is absent)"},
        {"READY": "1", "STATUS": "serving as archive"},
        {"RELOADING": "1", "MONOTONIC_USEC": "12500000", "STATUS": "reloading the configuration"},
        {"READY": "1", "STATUS": "serving as archive"},
        {"STOPPING": "1", "STATUS": "stopping"},
        {"EXTEND_TIMEOUT_USEC": "90000000"},
    ]
    notifier.close()


def test_a_long_wait_asks_for_more_time_in_time(manager: tuple[Manager, str]) -> None:
    other, name = manager
    clock = ManualClock()
    notifier = Notifier({"NOTIFY_SOCKET": name}, clock)
    asked_s = []
    for _ in range(300):
        notifier.waiting("waiting for java")
        if other.reported():
            asked_s.append(clock.monotonic_s())
        clock.advance(0.5)
    pauses = [later - earlier for earlier, later in pairwise(asked_s)]
    assert max(pauses) < EXTEND_S / 2
    assert len(asked_s) < 20, "and not at every call"
    notifier.close()


def test_the_watchdog_is_fed_twice_within_its_time(manager: tuple[Manager, str]) -> None:
    other, name = manager
    clock = ManualClock()
    notifier = Notifier(
        {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "77"}, clock, pid=77
    )
    fed_s = []
    for _ in range(100):
        notifier.feed()
        if {"WATCHDOG": "1"} in other.reported():
            fed_s.append(clock.monotonic_s())
        clock.advance(0.5)
    assert fed_s == [5.0 * number for number in range(1, 10)]
    notifier.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "78"},
    ],
)
def test_a_watchdog_that_is_not_ours_is_not_fed(
    environ: dict[str, str], manager: tuple[Manager, str]
) -> None:
    other, name = manager
    clock = ManualClock()
    notifier = Notifier({"NOTIFY_SOCKET": name, **environ}, clock, pid=77)
    clock.advance(3600)
    notifier.feed()
    assert other.reported() == []
    notifier.close()


def test_without_a_manager_nothing_is_said(manager: tuple[Manager, str]) -> None:
    other, _ = manager
    for environ in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "@"}):
        notifier = Notifier(environ, ManualClock())
        notifier.ready("serving")
        notifier.close()
    assert other.reported() == []


def test_a_manager_that_does_not_listen_does_no_harm(tmp_path: Path) -> None:
    gone = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}, ManualClock())
    gone.ready("serving")
    gone.close()
    full = Manager(str(tmp_path / "full"))
    try:
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "full")}, ManualClock())
        for number in range(10_000):  # more than any queue holds: sending must not block
            notifier.stopping(f"{number}")
        notifier.close()
        assert full.reported()
    finally:
        full.socket.close()
