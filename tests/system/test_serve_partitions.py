"""Partitions that are added while daemons run: every record of old and new partitions reaches the table, and
the audit, the reconciler and the page are right about all of them."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

TOPIC = "/v1/topics/clicks/records"
BEFORE, AFTER = 4, 6
TO_EACH = 3


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    made.write(with_clicks(made, BEFORE))
    return made


def with_clicks(deployment: Deployment, partitions: int) -> dict[str, Any]:
    document = quick(deployment.document())
    document["topics"][1] |= {"partitions": partitions}
    return document


def records(partitions: range) -> bytes:
    """So many records for each of these partitions."""
    return b"".join(
        json.dumps({"partition": partition, "value": "AAAA"}).encode() + b"\n"
        for partition in partitions
        for _ in range(TO_EACH)
    )


def keyed(count: int) -> bytes:
    """Records whose keys decide about their partitions."""
    return b"".join(
        json.dumps({"key": f"{number:04}", "value": "AAAA"}).encode() + b"\n" for number in range(count)
    )


def partitions_of(daemon: Served) -> dict[int, dict[str, Any]]:
    """The topic's partitions, by the daemon's audit; it must be valid."""
    document = daemon.admin("audit")["done"]["document"]
    assert document["verdict"] == "valid", document
    return {item["partition"]: item for item in document["partitions"] if item["topic"] == "clicks"}


class Steady:
    """A sender that does not stop while partitions are added; each request must be acknowledged."""

    def __init__(self, daemon: Served) -> None:
        self._daemon = daemon
        self._stop = threading.Event()
        self.requests = 0
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            answer = self._daemon.post(TOPIC, keyed(2))
            if answer.status != 200:
                self.wrong.append(answer)
            self.requests += 1

    def end(self) -> int:
        """Stop; how many records were sent and acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self.wrong == []
        return 2 * self.requests


def test_a_reload_adds_partitions_while_records_come_in(deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert daemon.post(TOPIC, records(range(BEFORE))).status == 200
        daemon.until_archived("clicks", sent := BEFORE * TO_EACH)
        sender = Steady(daemon)
        try:
            deployment.write(with_clicks(deployment, AFTER))
            done = daemon.admin("reload")["done"]
            assert (done["exit_code"], [item["key"] for item in done["document"]["applied"]]) == (
                0,
                ["topics.clicks.partitions"],
            )
            before = sender.requests
            until("records came in after it", lambda: sender.requests > before + 5)
        finally:
            sent += sender.end()
        daemon.until_logged("topic clicks has 6 partitions now, 4 before")
        assert daemon.post(TOPIC, records(range(AFTER)) + keyed(200)).status == 200
        daemon.until_archived("clicks", sent + AFTER * TO_EACH + 200)
        found = partitions_of(daemon)
        assert list(found) == list(range(AFTER))
        assert all(item["rows"] > TO_EACH for item in found.values()), "keys reach the new partitions too"
        assert daemon.ready()
        assert daemon.admin("reconcile")["done"]["exit_code"] == 0
        assert daemon.admin("clean")["done"]["exit_code"] == 0
        lags = [line for line in daemon.get("/metrics").body.decode().splitlines() if "lag_records{" in line]
        assert any('topic="clicks"' in line and 'partition="5"' in line for line in lags), lags

        deployment.write(with_clicks(deployment, BEFORE))
        done = daemon.admin("reload")["done"]
        assert [(item["key"], item["why"]) for item in done["document"]["refused"]] == [
            (
                "topics.clicks.partitions",
                "the topic has 6, and their number is never lowered; set `partitions: 6`",
            )
        ]
        assert daemon.post(TOPIC, records(range(AFTER))).status == 200
        daemon.until_archived("clicks", sent + 2 * AFTER * TO_EACH + 200)
        assert daemon.ready()
        assert daemon.stop() == 0


def test_a_daemon_follows_what_another_adds(deployment: Deployment, tmp_path: Path) -> None:
    """The leader's configuration keeps the old number: it archives all partitions that the log has."""
    with Served(deployment, scratch=tmp_path / "one") as leader:
        leader.until_ready()
        assert leader.post(TOPIC, records(range(BEFORE))).status == 200
        leader.until_archived("clicks", BEFORE * TO_EACH)
        with Served(deployment, "--roles", "intake", scratch=tmp_path / "two") as other:
            other.until_ready()
            deployment.write(with_clicks(deployment, AFTER))
            assert other.admin("reload")["done"]["exit_code"] == 0
            assert other.post(TOPIC, records(range(AFTER))).status == 200
            leader.until_archived("clicks", (BEFORE + AFTER) * TO_EACH)
            assert leader.post(TOPIC, records(range(AFTER))).status == 200
            leader.until_archived("clicks", (BEFORE + 2 * AFTER) * TO_EACH)
            assert list(partitions_of(leader)) == list(range(AFTER))
            behind = "topic clicks has 6 partitions, the configuration says 4"
            until("its page says that its file is behind", lambda: behind in leader.get("/").body.decode())
            assert leader.ready()
            assert other.stop() == 0
        assert leader.admin("reconcile")["done"]["exit_code"] == 0
        assert leader.admin("reload")["done"]["document"] == {
            "applied": [{"key": "topics.clicks.partitions", "old": "4", "new": "6"}],
            "refused": [],
        }
        until("it agrees", lambda: behind not in leader.get("/").body.decode())
        assert leader.stop() == 0
