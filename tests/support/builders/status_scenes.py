"""States of a deployment as the status page meets them, each made by a real application on a folder of its
own.

For tests of the page, and for the pictures of it (`scripts/screenshots.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from archiver.runtime.text import counted
from archiver.status.history import LagHistory
from archiver.status.journal import Cycle, Journal, Outcome
from archiver.status.lag import lag_report
from archiver.web.page import PageValues
from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.intake.transactions import Transactional

HOSTILE = "</td><script>alert('x')</script>\u202e<img src=x onerror=alert(1)>&amp;\x1b[31m"
"""A transactional id that no client sends by accident."""
HOUR_S = 3600.0
LOOK_S = 30.0


@dataclass
class Scene:
    """A daemon's state without the daemon: application, journal and history."""

    deployment: Deployment
    journal: Journal = field(default_factory=lambda: Journal(200))
    history: LagHistory = field(default_factory=lambda: LagHistory(6 * HOUR_S, 1000))
    stuck: dict[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ("intake", "archive", "reconcile")

    def __post_init__(self) -> None:
        self.driver = Driver(self.deployment)
        self.journal.becomes("serving")
        self.check("metadata", None)
        self.check("objects", None)
        self.check("catalog local", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()

    @property
    def now_us(self) -> int:
        """By the application's clock."""
        return self.driver.clock.now_us()

    def check(self, name: str, why: str | None) -> None:
        """A dependency was asked."""
        self.journal.checked(name, why, self.now_us)

    def cycle(
        self,
        job: str,
        outcome: Outcome,
        line: str,
        document: dict[str, Any] | None = None,
        seconds: float = 0.2,
    ) -> None:
        """A job ended."""
        self.journal.add(Cycle(job, self.now_us, seconds, outcome, line, document or {}))

    def tick(self) -> None:
        """Archive all stable records, and note it as the daemon does."""
        report = self.driver.archive()
        halted = report.halted
        self.stuck = {item.topic: item.why or "" for item in [*halted, *report.deferred]}
        rows = sum(item.rows for item in report.topics.values())
        reported = f"{counted(rows, 'record')} archived in {counted(report.rounds, 'round')}"
        line = reported if not halted else f"{reported}; halted: {', '.join(item.topic for item in halted)}"
        self.cycle("tick", "wrong" if halted else "fine", line, report.to_json())

    def look(self) -> None:
        """A sample of the lag, as the daemon's watch takes it."""
        self.history.add(self._standing(), self.driver.clock.monotonic_s())

    def wait(self, seconds: float) -> None:
        """Time passes, and the daemon's watch goes on sampling."""
        for _ in range(round(seconds / LOOK_S)):
            self.driver.clock.ahead_s += LOOK_S
            self.look()
        self.driver.clock.ahead_s += seconds % LOOK_S

    def _standing(self) -> Any:
        app = self.driver.application
        ledger, intake = app.ledger(), app.backlog()
        return lag_report(
            intake, ledger, app.settings.topics, self.now_us, self.stuck, archive=app.settings.archive
        )

    def values(self, query: Mapping[str, str] | None = None) -> PageValues:
        """What the page shows of it."""
        app = self.driver.application
        found = self._standing()
        return PageValues(
            standing=found,
            journal=self.journal,
            history=self.history,
            now_us=found.now_us + 2_000_000,
            look_interval_s=5.0,
            version="1.2.3",
            owner="archive-1:4711",
            roles=self.roles,
            cluster=app.cluster.name,
            cluster_id=app.cluster.cluster_id,
            data=app.settings.data.uri,
            leader="archive-1:4711",
            epoch=app.ledger().epoch,
            pin=app.oldest_required(),
            pin_known=True,
            renewals={
                "watch": found.now_us + 5_000_000,
                "cleanup": found.now_us + 1_260_000_000,
                "audit": found.now_us + 2_400_000_000,
            },
            query=query or {},
        )


def healthy(root: Path, steps: int = 24) -> Scene:
    """Some hours of records that are archived in time."""
    scene = Scene(Deployment(root))
    for step in range(steps):
        for topic, partitions in (("orders", 3), ("clicks", 2), ("files", 1), ("kept", 1)):
            for partition in range(partitions):
                scene.driver.send(topic, [b"\x08\x01"] * (3 + (step * 7 + partition) % 11), partition)
        scene.wait(60 + 45 * (step % 5))
        scene.look()
        if step % 2:
            scene.tick()
            scene.look()
        scene.wait(600)
    scene.tick()
    scene.look()
    scene.cycle("cleanup", "fine", "12 objects condemned, 31 deleted, 4.2 MiB free again", seconds=1.4)
    verdicts = [{"verdict": "valid"}] * 6
    scene.cycle(
        "audit",
        "fine",
        "valid: 6 partitions, 1,402 records",
        {"verdict": "valid", "partitions": verdicts},
        2.8,
    )
    scene.cycle("watch", "fine", "3 dependencies answer")
    scene.wait(4)
    return scene


def troubled(root: Path) -> Scene:
    """A table that was dropped, a transaction that stays open, a dependency that is away, an audit that found
    something."""
    scene = healthy(root, 8)
    app = scene.driver.application
    with catalog_table(scene.deployment, "shop.clicks") as table:
        table.catalog.drop_table("shop.clicks")
    sender = Transactional(app, scene.driver.clock, HOSTILE, 4 * HOUR_S)
    sender.send({("orders", 1): [b"\x08\x01"] * 5, ("orders", 2): [b"\x08\x01"]})
    slow = Transactional(app, scene.driver.clock, "nightly-billing", 600)
    slow.send({("kept", 0): [b"x"] * 3})
    scene.driver.send("orders", [b"\x08\x01"] * 40, 1)
    scene.driver.send("clicks", [b"c"] * 17, 0)
    for _ in range(6):
        scene.wait(500)
        scene.look()
    scene.tick()
    scene.check(
        "catalog local",
        "no answer within 5 s: <b>connection refused</b> by catalog.internal:8181, proxy said " + "x" * 90,
    )
    scene.cycle("cleanup", "untold", "the catalog local does not answer, so nothing was deleted")
    partitions = [{"verdict": "invalid"}, *[{"verdict": "valid"}] * 5]
    scene.cycle(
        "audit",
        "wrong",
        "invalid: clicks partition 0 lacks 17 records",
        {"verdict": "invalid", "partitions": partitions},
    )
    scene.cycle("watch", "untold", "catalog local does not answer")
    scene.wait(130)
    scene.look()
    return scene


def starting(root: Path) -> PageValues:
    """The application is not open: the metadata store and the folder are away."""
    journal = Journal(10)
    with Scene(Deployment(root)) as scene:
        now_us = scene.now_us
        values = scene.values()
    journal.checked(
        "metadata",
        "cannot open metadata.db: unable to open database file; bring the disk back",
        now_us - 95_000_000,
    )
    journal.checked("objects", None, now_us - 95_000_000)
    journal.checked("java", "no Java 17 or newer was found; set JAVA_HOME", now_us - 95_000_000)
    journal.add(Cycle("watch", now_us - 3_000_000, 0.1, "untold", "metadata does not answer"))
    return replace(
        values,
        standing=None,
        journal=journal,
        history=LagHistory(HOUR_S, 10),
        cluster_id=None,
        leader=None,
        epoch=None,
        pin=None,
        pin_known=False,
    )


def many(root: Path, partitions: int = 300, others: int = 30) -> Scene:
    """A topic of many partitions with all kinds of lag, and many small topics."""
    topics: list[dict[str, Any]] = [
        {"name": "telemetry", "partitions": partitions, "archive": {"kind": "parquet"}}
    ]
    topics += [
        {"name": f"device-{number:03}", "partitions": 4, "archive": {"kind": "parquet"}}
        for number in range(others)
    ]
    scene = Scene(Deployment(root, overrides={"topics": topics, "archive": {"concurrent_max": 4000}}))
    app = scene.driver.application
    with app.intake.writer() as writer:
        for partition in range(partitions):
            for _ in range(1 + partition % 5):
                writer.send("telemetry", Record(None, b"v" * 20), partition)
        for number in range(others):
            writer.send(f"device-{number:03}", Record(None, b"v"), number % 4)
        writer.flush()
    scene.tick()
    for step in range(5):
        scene.wait(240)
        with app.intake.writer() as writer:
            for partition in range(step, partitions, 3):
                writer.send("telemetry", Record(None, b"v" * 20), partition)
            writer.flush()
        scene.look()
    for number in range(3):
        held = Transactional(app, scene.driver.clock, f"import-{number}", HOUR_S)
        held.send({("telemetry", (number * 40 + place) % partitions): [b"x"] for place in range(9)})
    scene.wait(400)
    scene.look()
    return scene


def empty(root: Path) -> Scene:
    """Nothing is configured yet."""
    return Scene(Deployment(root, overrides={"topics": [], "catalogs": []}))


SCENES: Mapping[str, Callable[[Path], Scene]] = {
    "healthy": healthy,
    "troubled": troubled,
    "many": many,
    "empty": empty,
}
"""All but `starting`, which has no application."""
