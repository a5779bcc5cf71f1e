"""SIGHUP, and the same through the port, on a real daemon: what can be applied is, what cannot is named, a
wrong file changes nothing."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from signal import SIGHUP
from typing import Any

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

ONE = b'{"value": "AAAA"}\n'
CANARY = "canary-4711-of-the-reload"
CLICKS = "/v1/topics/clicks/records"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    made.write(quick(made.document()))
    return made


def changed(deployment: Deployment) -> dict[str, Any]:
    document = quick(deployment.document())
    document["archive"] |= {"tick": "7s"}
    document["cleanup"] = {"interval": "2h"}
    document["topics"][1]["archive"] |= {"complete_delay_max": "17s"}
    document["topics"].append({"name": "added", "partitions": 2})
    return document


def page(daemon: Served) -> str:
    return " ".join(daemon.get("/").body.decode().split())


def test_settings_are_reloaded(deployment: Deployment, tmp_path: Path) -> None:
    (deployment.root / "token").write_text(CANARY)
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert daemon.post("/v1/topics/added/records", ONE).status == 404

        document = changed(deployment)
        document["intake"] = {"delay_max": "33ms"}
        document["http"]["admin_token"] = {"file": "token"}
        deployment.write(document)
        daemon.signal(SIGHUP)
        until("it has reloaded", lambda: len(daemon.logged("reloaded")) >= 6)
        reported = [line["message"] for line in daemon.logged("reloaded")]
        assert reported == [
            "reloaded archive.tick: 300ms -> 7s",
            "reloaded cleanup.interval: 6h -> 2h",
            "reloaded topics.clicks.archive.complete_delay_max: (not set) -> 17s",
            "reloaded topics.added: (absent) -> a new topic",
            "not reloaded: http.admin_token: it needs a restart",
            "not reloaded: intake.delay_max: it needs a restart",
        ]
        assert CANARY not in daemon.log_text()
        refused = (
            "refused in part: http.admin_token: it needs a restart; intake.delay_max: it needs a restart"
        )
        until("the page says it", lambda: refused in page(daemon))
        assert daemon.post("/v1/topics/added/records", ONE).status == 200, "new topics are there at once"
        assert daemon.ready()

        deployment.config.write_text("cluster: test\ntopics: 7\n", encoding="utf-8")
        daemon.signal(SIGHUP)
        until("it has refused the file", lambda: daemon.logged("the configuration is not reloaded"))
        assert daemon.post("/v1/topics/added/records", ONE).status == 200, "everything goes on"
        assert daemon.ready()
        error = daemon.admin("reload")["error"]
        assert (error["type"], error["exit_code"]) == ("ConfigInvalid", 3)
        assert "the configuration file is not in force" in page(daemon)

        deployment.write(changed(deployment))
        done = daemon.admin("reload")["done"]
        assert done == {"document": {"applied": [], "refused": []}, "exit_code": 0}, (
            "what was refused is back as it was"
        )
        until("it says what a reload still does", lambda: daemon.logged("schemas are checked again"))
        assert "is not in force" not in page(daemon)
        assert daemon.stop() == 0


def test_a_topic_that_cannot_be_as_wanted_keeps_what_it_has(deployment: Deployment, tmp_path: Path) -> None:
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        document = quick(deployment.document())
        document["topics"][1] |= {"partitions": 1}
        deployment.write(document)
        done = daemon.admin("reload")["done"]
        assert done["exit_code"] == 1
        assert done["document"]["refused"] == [
            {
                "key": "topics.clicks.partitions",
                "why": "the topic has 2, and their number is never lowered; set `partitions: 2`",
            }
        ]
        assert daemon.post("/v1/topics/clicks/records", ONE).status == 200
        assert daemon.stop() == 0


def with_clicks(deployment: Deployment, partitions: int) -> dict[str, Any]:
    document = quick(deployment.document())
    document["topics"][1] |= {"partitions": partitions}
    return document


def to_partition(number: int) -> bytes:
    return json.dumps({"partition": number, "value": "AAAA"}).encode() + b"\n"


def test_a_daemon_that_starts_with_more_partitions_adds_them(deployment: Deployment, tmp_path: Path) -> None:
    assert deployment.cli("topics", "create", "clicks").code == 0
    deployment.write(with_clicks(deployment, 5))
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        daemon.until_logged("topic clicks has 5 partitions now, 2 before")
        assert daemon.post(CLICKS, to_partition(4)).status == 200
        assert daemon.stop() == 0


def test_a_topic_that_grew_beyond_its_configuration_goes_on(deployment: Deployment, tmp_path: Path) -> None:
    """A daemon starts with fewer partitions than the log has, and a command adds more while it runs."""
    assert deployment.cli("topics", "create", "clicks").code == 0
    assert deployment.cli("topics", "alter", "clicks", "--partitions", "4").code == 0
    behind = "topic clicks has {0} partitions, the configuration says 2; set `partitions: {0}` in"
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        daemon.until_logged(behind.format(4))
        assert daemon.post(CLICKS, to_partition(3)).status == 200
        assert daemon.post(CLICKS, to_partition(5)).status == 400
        assert deployment.cli("topics", "alter", "clicks", "--partitions", "6").code == 0
        until(
            "it has read the entry, without a reload",
            lambda: daemon.post(CLICKS, to_partition(5)).status == 200,
        )
        shown = "topic clicks has 6 partitions, the configuration says 2"
        until("the page says it", lambda: shown in page(daemon))
        assert daemon.ready(), "a file that is behind is no problem"

        document = with_clicks(deployment, 2)
        document["cleanup"] = {"interval": "2h"}
        deployment.write(document)
        assert applied(daemon) == ["cleanup.interval"], "a number that did not change is not refused"
        deployment.write(with_clicks(deployment, 5))
        done = daemon.admin("reload")["done"]
        assert [item["why"] for item in done["document"]["refused"]] == [
            "the topic has 6, and their number is never lowered; set `partitions: 6`"
        ]
        deployment.write(with_clicks(deployment, 6))
        assert applied(daemon) == ["topics.clicks.partitions"]
        until("the page does not say it any more", lambda: "the configuration says" not in page(daemon))
        assert applied(daemon) == []
        assert daemon.stop() == 0


def applied(daemon: Served) -> list[str]:
    """The keys that a reload applied; all of them, or it raises."""
    done = daemon.admin("reload")["done"]
    assert done["exit_code"] == 0, done
    return [item["key"] for item in done["document"]["applied"]]


def test_a_reload_that_fails_applies_nothing_and_the_next_one_everything(
    deployment: Deployment, tmp_path: Path
) -> None:
    document = quick(deployment.document())
    document["metadata"]["sqlite"] |= {"busy_timeout": "500ms"}
    document["log"] = {**document.get("log", {}), "append_attempts_max": 2}
    deployment.write(document)
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        database = next(deployment.root.rglob("metadata.db"))
        wanted = changed(deployment)
        wanted["metadata"], wanted["log"] = document["metadata"], document["log"]
        deployment.write(wanted)
        with closing(sqlite3.connect(database, isolation_level=None)) as held:
            held.execute("BEGIN IMMEDIATE")
            error = daemon.admin("reload")["error"]
            assert error["exit_code"] == 2, error
            held.execute("ROLLBACK")
        until(
            "it is told",
            lambda: daemon.logged("the configuration is not reloaded, the old one stays in force"),
        )
        assert daemon.post("/v1/topics/added/records", ONE).status == 404
        assert applied(daemon) == [
            "archive.tick",
            "cleanup.interval",
            "topics.clicks.archive.complete_delay_max",
            "topics.added",
        ]
        assert daemon.post("/v1/topics/added/records", ONE).status == 200
        assert applied(daemon) == []
        assert daemon.stop() == 0


def test_another_interval_takes_effect(deployment: Deployment, tmp_path: Path) -> None:
    deployment.write(quick(deployment.document(), watch_interval="1h"))
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        looks = daemon.cycles("watch", "fine")
        deployment.write(quick(deployment.document()))
        assert applied(daemon) == ["daemon.watch_interval"]
        until("it looks more often", lambda: daemon.cycles("watch", "fine") >= looks + 3)
        assert daemon.stop() == 0


def test_a_halted_topic_is_looked_at_again_right_after_a_reload(
    deployment: Deployment, tmp_path: Path
) -> None:
    document = quick(deployment.document())
    document["archive"] |= {"start_delay_max": "1h"}
    deployment.write(document)
    descriptors = deployment.root / "shop.binpb"
    good = descriptors.read_bytes()
    descriptors.write_bytes(b"no descriptors")
    with Served(deployment, "--roles", "archive", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        until("the topic is halted", lambda: daemon.logged("halted: orders"))
        descriptors.write_bytes(good)
        ticks = daemon.cycles("tick", "wrong")
        until("ticks pass it over", lambda: daemon.cycles("tick", "wrong") >= ticks + 3)
        assert daemon.cycles("tick", "fine") == 0, "it rests"
        assert applied(daemon) == []
        until("it is well", lambda: daemon.cycles("tick", "fine") > 0)
        assert daemon.stop() == 0
