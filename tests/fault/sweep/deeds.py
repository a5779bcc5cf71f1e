"""What an actor does, in a process that may die or stand still at any step, or in the test itself.

An actor that leads does so as a daemon does: with a lease that it keeps. Refinement is done in the actor's
own process, by the function that a Spark worker runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from archiver import Writer
from archiver.app.application import Application
from archiver.cli.app import run as run_command
from archiver.config.settings import load_settings
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Halt, RetryLater
from archiver.runtime.exit_codes import exit_code
from archiver.runtime.ids import SystemIds
from intake.sources.files.pump import FileSources
from tests.fault.sweep import group_work
from tests.fault.sweep.sent_records import Sender
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver

LOOKS = 6
"""Polls of a source: noticing a file that is gone takes an additional poll."""


@dataclass(frozen=True)
class Orders:
    """The orders that an actor gets."""

    root: str
    history: str
    output: str
    scratch: str
    """For temporary files: those of Spark outlive a kill for a moment."""
    deed: str
    armed: str
    """Point and action."""
    arguments: list[str] = field(default_factory=list)
    """Of a command."""


class Found(Deployment):
    """A deployment that is there, to be used as it is."""

    def __post_init__(self) -> None:
        pass

    @property
    def config(self) -> Path:
        """The configuration file; another one agrees to failpoints."""
        return self.armed_config if self.failpoints_asked else self.root / "archiver.yaml"

    @property
    def armed_config(self) -> Path:
        """The configuration that agrees to failpoints."""
        return self.root / "armed.yaml"


class Daemon(Driver):
    """A driver that keeps its leadership, and disarms nothing."""

    def __init__(self, deployment: Deployment, ahead_s: float = 0.0) -> None:
        self.deployment = deployment
        self.clock = AheadClock()
        self.clock.ahead_s = ahead_s
        self.reported = []
        self.jobs = []
        self.application = Application(load_settings(deployment.config, {}), {}, self.clock, lasting=True)

    def close(self) -> None:
        """As the end of a process."""
        with contextlib.suppress(ArchiverError):
            self.application.leadership.resign()
        self.application.close()


Deed = Callable[[Daemon], ArchiverError | None]
"""What a process that leads, or may lead, does; the error it ended with, if that is not raised."""


class Reported(Protocol):
    """A topic's part of a report."""

    @property
    def state(self) -> str:
        """How it ended."""

    @property
    def why(self) -> str | None:
        """And why."""


def _left_over(topics: Iterable[Reported]) -> ArchiverError | None:
    """What a report says that is no error to raise: a later run goes on."""
    halted, deferred = (
        [one.why or "" for one in topics if one.state == state] for state in ("halted", "deferred")
    )
    return Halt("; ".join(halted)) if halted else RetryLater("; ".join(deferred)) if deferred else None


def archive(daemon: Daemon) -> ArchiverError | None:
    """Archive all stable records."""
    return _left_over(daemon.archive().topics.values())


def clean(daemon: Daemon) -> ArchiverError | None:
    """One run of the vacuum, which merges small archives if that is configured."""
    report = daemon.application.maintenance.cleaning(daemon.reported.append).run()
    left = [topic.why for topic in report.compacted if topic.why]
    return report.error or (RetryLater("; ".join(left)) if left else None)


def reconcile(daemon: Daemon) -> ArchiverError | None:
    """As `archiver reconcile --fix`."""
    return daemon.application.maintenance.reconciling(daemon.reported.append).run("everything").error


def replay(daemon: Daemon) -> ArchiverError | None:
    """Decode the orders again."""
    run = daemon.application.archiving.replaying(daemon.reported.append)
    return _left_over(run.run(("orders", None), 1000, dry_run=False).topics)


def take(daemon: Daemon) -> ArchiverError | None:
    """Poll the sources."""
    settings, application = daemon.application.settings, daemon.application
    sources = FileSources(
        [one.files for one in settings.sources if one.files is not None],
        {topic.name: topic.partitions for topic in settings.topics},
        settings.intake,
        application.sequencer,
        application.objects,
        daemon.clock,
        SystemIds(),
        0.01,
    )
    for _ in range(LOOKS):
        sources.poll()
    return None


def consume(daemon: Daemon) -> ArchiverError | None:
    """The work of consumer groups over the Kafka port; a client that is refused ends."""
    with contextlib.suppress(group_work.RefusedByDaemon):
        group_work.consume(daemon, "actor")
    return None


def delete_group(daemon: Daemon) -> ArchiverError | None:
    """Delete a consumer group over the Kafka port."""
    with contextlib.suppress(group_work.RefusedByDaemon):
        group_work.delete_group(daemon, "actor")
    return None


LED: dict[str, Deed] = {
    "archive": archive,
    "clean": clean,
    "consume": consume,
    "delete-group": delete_group,
    "reconcile": reconcile,
    "replay": replay,
    "take": take,
}


def _send(deployment: Found, orders: Orders) -> int:
    """Through the public writer, with the ledger of the harness."""
    with Sender(Path(orders.history), "actor") as sender, Writer(deployment.armed_config) as writer:
        for _ in range(3):
            sender.send(writer)
    return 0


def perform(orders: Orders) -> int:
    """The whole of an actor; its exit code is what the command would have."""
    deployment = Found(Path(orders.root))
    name = orders.armed.partition("=")[0]
    os.environ |= {
        failpoints.VARIABLE: orders.armed,
        "ARCHIVER_CONFIG": str(deployment.armed_config),
        "TMPDIR": orders.scratch,
    }
    tempfile.tempdir = None
    found: ArchiverError | None = None
    code = 0
    try:
        if orders.deed == "command":
            code = run_command(orders.arguments)
        elif orders.deed == "send":
            code = _send(deployment, orders)
        else:
            failpoints.arm(orders.armed)
            with Daemon(deployment) as daemon:
                found = LED[orders.deed](daemon)
    except ArchiverError as error:
        found = error
    reported: dict[str, Any] = {
        "error": None if found is None else type(found).__name__,
        "why": str(found),
        "reached": failpoints.reached(name),
    }
    (Path(orders.history) / "actor.json").write_text(json.dumps(reported), encoding="utf-8")
    return code if found is None else exit_code(found)
