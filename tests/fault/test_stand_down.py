"""A daemon that leads without right gives its lease back, even if anything else hangs: its round, its object
store, the log itself (rule L4)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.daemon import daemon as serving
from archiver.daemon.signals import Signals
from archiver.ledger.fold import LedgerFold
from archiver.log.lease import FileLease
from archiver.runtime.errors import RetryLater
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.processes import until
from tests.support.process.serving import quick

WAIT_S = 180.0
CONFIRM_MAX_S = 3.0


class Hanging:
    """Something that does not answer before the end of the test."""

    def __init__(self) -> None:
        self._asked, self._over = threading.Event(), threading.Event()

    def store(self, *_: object) -> bool:
        """In the place of `Checkpointer.run_if_due`, which raises nothing."""
        self._asked.set()
        self._over.wait(WAIT_S)
        return False

    def log(self) -> LedgerFold:
        """In the place of `Application.ledger`."""
        self.store()
        raise RetryLater("the metadata store does not answer")

    def until_asked(self) -> None:
        assert self._asked.wait(WAIT_S)

    def end(self) -> None:
        self._over.set()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.end()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """Of one topic that needs neither catalog nor Spark."""
    made = Deployment(
        tmp_path / "d",
        overrides={"topics": [{"name": "files", "partitions": 1, "archive": {"kind": "parquet"}}]},
    )
    made.write(quick(made.document(), confirm_max=CONFIRM_MAX_S, shutdown_grace="10m"))
    return made


@contextmanager
def running(deployment: Deployment, hanging: Hanging, *roles: str) -> Iterator[serving.Daemon]:
    """A daemon in this process that serves."""
    with Signals() as signals:
        daemon = serving.Daemon(load_settings(deployment.config, {}), deployment.config, {}, frozenset(roles))
        thread = threading.Thread(target=daemon.run, args=(signals,))
        thread.start()
        try:
            until("it serves", lambda: daemon._serving)
            yield daemon
        finally:
            hanging.end()
            signals.ask("stop")
            thread.join(WAIT_S)
    assert not thread.is_alive()


@contextmanager
def leading(deployment: Deployment, hanging: Hanging) -> Iterator[tuple[serving.Daemon, Application]]:
    """One that leads, while a turn of its own does not end: as a round that hangs."""
    with running(deployment, hanging, "archive", "reconcile") as daemon:
        application = daemon._serving
        assert application is not None
        until("it leads", lambda: application.leader.epoch)
        with application.leadership.turn("a round that hangs"):
            application.leadership.lead()  # also if the machine was so slow that it had given its lease back
            assert application.lease.holder() is not None
            yield daemon, application


def take_over(deployment: Deployment) -> None:
    """Another process begins an epoch, with a lease that is independent of the first."""
    with Driver(deployment) as successor:
        successor.application.lease = FileLease(deployment.root / "other.lease", "other:1")
        successor.archive()


def until_given_back(application: Application) -> None:
    until("the lease is given back", lambda: application.lease.holder() is None)


def test_l4_it_learns_of_a_newer_leader_while_the_object_store_hangs(
    deployment: Deployment, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leading(deployment, hanging) as (_, application):
        monkeypatch.setattr(application.checkpointer, "run_if_due", hanging.store)
        hanging.until_asked()
        take_over(deployment)
        until_given_back(application)


def test_l4_a_log_that_hangs_is_one_that_cannot_be_read(
    deployment: Deployment, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "POLL_S", 0.5)
    with leading(deployment, hanging) as (_, application):
        monkeypatch.setattr(application, "ledger", hanging.log)
        hanging.until_asked()
        until_given_back(application)


def test_l4_a_look_that_waits_for_others_who_read_is_one_that_cannot_read(
    deployment: Deployment, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a status page whose catalog hangs."""
    with leading(deployment, hanging) as (daemon, application), daemon._ledger_lock:
        monkeypatch.setattr(serving, "ANSWER_S", 0.2)
        until_given_back(application)


def test_checkpoints_are_made_during_the_watch(
    deployment: Deployment, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is archived, and one that hangs holds back nothing that is shown."""
    with running(deployment, hanging, "intake") as daemon:
        application = daemon._serving
        assert application is not None
        monkeypatch.setattr(application.checkpointer, "run_if_due", hanging.store)
        hanging.until_asked()
        seen = daemon._poller.snapshot
        until("the watch has looked again", lambda: daemon._poller.snapshot is not seen)
