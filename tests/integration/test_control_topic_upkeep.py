"""What the control topic retains of the control log, in an application as a process has it. No request
outlasts the process.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from archiver.control_topic.kafka_topic import KafkaTopic
from archiver.control_topic.publisher import Position
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.event_reader import EventReader
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import RetryLater
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.kafka.control_topic import LedgerWriter, settings_of

CLOCK = SystemClock()


def test_what_is_not_published_stays_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short: dict[str, Any] = {"log": {"append_backoff": "5ms", "checkpoint_entries": 10}}
    deployment = Deployment(
        tmp_path / "d",
        overrides=short | {"events": {"kafka": {"brokers": "127.0.0.1:1", "topic": "control"}}},
    )
    with Driver(deployment) as driver:
        app = driver.application
        opened: list[str] = []
        log = app.logs.log

        def noted(name: str) -> Any:
            opened.append(name)
            return log(name)

        monkeypatch.setattr(app.logs, "log", noted)
        ledger = LedgerWriter(app.control_log)
        for _ in range(8):
            ledger.round(1, 2)
        assert app.archiving.ledger_checkpointer.run() == [10, 20, 30, 40, 50, 60]
        assert (app.archiving.unpublished_from(), app.control_log.floor()) == (0, 0), (
            "nothing was published: nothing is trimmed"
        )
        assert "begins with" not in deployment.cli("ledger", "events").err

        reader = EventReader()
        for entry in app.control_log.read(0, 25):
            reader.take(entry.index, entry.data)
        positions = app.archiving.positions()
        assert positions.newest() is None
        positions.move(Position("control", b"", reader.mark))
        app.archiving.ledger_checkpointer.run()
        assert (app.archiving.unpublished_from(), app.control_log.floor()) == (19, 19)
        checkpoints = LedgerCheckpoints(app.objects)
        assert checkpoints.superseded(app.control_log) == [checkpoints.key(10)]
        assert opened == ["published"], "one log for all who ask for the position"

    shown = deployment.cli("ledger", "events")
    assert shown.lines()[0]["index"] == 20
    assert shown.err == "begins with entry 20 of the control log; those before it were trimmed\n"
    deployment.write(deployment.document() | {"events": {}})
    with Driver(deployment) as driver:
        assert driver.application.archiving.unpublished_from() is None


def test_a_cluster_that_does_not_answer_is_not_waited_for_when_the_process_stops() -> None:
    """A listener that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = settings_of(brokers=f"127.0.0.1:{silent.getsockname()[1]}", request_timeout="30s")
        topic = KafkaTopic(settings, CLOCK)
        before_s = CLOCK.monotonic_s()
        with pytest.raises(RetryLater, match="about to stop"):
            topic.topic_id(lambda: True)
        assert CLOCK.monotonic_s() - before_s < 5
        topic.close()
        del topic
        assert CLOCK.monotonic_s() - before_s < 10
