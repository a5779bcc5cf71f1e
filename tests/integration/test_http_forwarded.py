"""Produce requests over HTTP that an intake worker answers, and workers that end or do not answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archiver.web import forward
from archiver.web.forward import ENDED, Forward
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.web import Daemon, in_threads

LINE = b'{"value": "YQ=="}\n'


class Ending:
    """Workers that get a request and do what a test says with their end of the pair."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self._act = act
        self.kept: list[socket.socket] = []
        self.ended = 0

    def give_records(self, far: socket.socket) -> Callable[[], None] | None:
        copy = far.dup()
        self.kept.append(copy)
        self._act(copy)
        return self._end

    def _end(self) -> None:
        self.ended += 1


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d")) as daemon:
        yield daemon


def answered_by(daemon: Daemon, workers: Ending) -> None:
    daemon.forward_to(Forward(lambda: workers, daemon.face.http))


def test_a_worker_that_ends_leaves_the_outcome_unknown(daemon: Daemon) -> None:
    workers = Ending(lambda far: far.close())
    answered_by(daemon, workers)
    reply = daemon.send("clicks", LINE)
    assert (reply.status, reply.json()["error"]["type"], reply.error) == (500, "OutcomeUnknown", ENDED)
    assert workers.ended == 1
    # The daemon must not send them again by itself.
    assert daemon.stored("clicks") == {}


def test_a_worker_that_ends_within_its_answer_leaves_the_outcome_unknown(daemon: Daemon) -> None:
    def act(far: socket.socket) -> None:
        far.sendall(b"\x00\x00\x00\x20\x00\x00\x00\x10{")
        far.close()

    answered_by(daemon, Ending(act))
    assert daemon.send("clicks", LINE).status == 500


def test_a_worker_that_does_not_answer_is_waited_for_within_a_bound(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "MARGIN_S", 0.1)
    workers = Ending(lambda _: None)
    hurried = daemon.face.http.model_copy(update={"request_timeout": 0.5})
    daemon.forward_to(Forward(lambda: workers, hurried))
    try:
        assert daemon.send("clicks", LINE).error == ENDED
    finally:
        for one in workers.kept:
            one.close()
    assert workers.ended == 1


def test_without_a_worker_the_daemon_stores_the_records(daemon: Daemon) -> None:
    class NoWorker:
        def give_records(self, _: socket.socket) -> Callable[[], None] | None:
            return None

    daemon.forward_to(Forward(NoWorker, daemon.face.http))
    assert daemon.send("clicks", LINE).status == 200
    assert len(daemon.stored("clicks")) == 1


def test_a_worker_that_stops_refuses(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d"), forwarded=True) as daemon:
        assert daemon.send("clicks", LINE).status == 200
        assert daemon.worker is not None
        daemon.worker.writer = None
        reply = daemon.send("clicks", LINE)
        assert (reply.status, reply.json()["error"]["type"]) == (503, "RetryLater")
        assert reply.headers["retry-after"] == "2"
        assert len(daemon.stored("clicks")) == 1
        assert (daemon.worker.given, daemon.worker.ended) == (2, 2)


def test_requests_of_many_clients_are_answered_each(tmp_path: Path) -> None:
    """Each client gets the outcome of its own records."""
    with Daemon(Deployment(tmp_path / "d"), forwarded=True) as daemon:
        found: dict[int, list[tuple[int, int]]] = {}

        def send(number: int) -> None:
            body = b"".join(b'{"value": "%d", "partition": 0}\n' % (100 * number + at) for at in range(7))
            lines = daemon.send("clicks", body, query="?text=true").lines()
            found[number] = [(line["partition"], line["offset"]) for line in lines]

        in_threads([lambda number=number: send(number) for number in range(12)])  # type: ignore[misc]
        stored = daemon.stored("clicks")
        for number, places in found.items():
            values = [stored[place].value for place in places]
            assert values == [b"%d" % (100 * number + at) for at in range(7)]
        until("every request has ended", lambda: daemon.worker is not None and daemon.worker.ended == 12)
