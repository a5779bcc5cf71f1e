"""Undecoded records and the preview of their replay through the read API: complete within bounds, and nothing
is written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.app import reading_dead_letters
from archiver.app.reading_dead_letters import DeadLetters
from archiver.rewrite.undecoded import Search
from archiver.runtime.errors import RetryLater
from archiver.web import access
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.undecoded import replay, send_unmended
from tests.support.process.pages import check_harmless
from tests.support.process.web import Daemon, basic, kafka_users

UNDECODED = [(0, 2), (0, 3), (0, 7), (0, 12), (0, 20), (1, 2), (1, 3), (1, 7), (1, 12), (1, 20)]


def everything(_name: str) -> bool:
    return True


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    passwords = {name: f"secret {name}" for name in ("alice", "bob")}
    rules = [
        {"principal": "User:alice", "operations": ["read"], "topics": ["clicks"]},
        {"principal": "User:bob", "operations": ["describe"], "topics": ["*"]},
    ]
    kafka = kafka_users(tmp_path / "users", passwords, rules)
    return Deployment(tmp_path / "d", overrides={"kafka": kafka})


@pytest.fixture
def daemon(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Two archives, each with four orders that a fixed schema decodes, and one value that none does."""
    monkeypatch.setattr(access, "FAILED_WAIT_S", 0.0)
    with Driver(deployment) as driver:
        driver.send("clicks", [b"1"], 0)
        for partition in (0, 1):
            send_unmended(driver, monkeypatch, partition=partition)
    with Daemon(deployment) as daemon:
        yield daemon


def user(name: str) -> dict[str, str]:
    # A proxy's header makes the port ask for a login.
    return {**basic(name, f"secret {name}"), "X-Forwarded-For": "192.0.2.1"}


def get(daemon: Daemon, path: str, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    reply = daemon.call("GET", f"/v1{path}", headers=headers)
    assert reply.status == status, reply.body
    page = daemon.call("GET", path, headers=headers)
    assert page.status == status
    check_harmless(page)
    return reply.json()


def test_records_are_listed_by_cause(daemon: Daemon) -> None:
    found = get(daemon, "/dead-letters")
    assert [(one["partition"], one["offset"]) for one in found["records"]] == UNDECODED
    assert {one["topic"] for one in found["records"]} == {"orders"}
    assert (found["more"], found["topics_left"]) == (0, [])
    of_orders = next(one for one in found["topics"] if one["topic"] == "orders")
    assert of_orders == {
        "topic": "orders",
        "files": 2,
        "decode_errors": {"value:malformed": 6, "value:not_utf8": 4},
        "why": None,
        "values": 10,
        "complete": True,
        "files_left": 0,
    }
    page = daemon.call("GET", "/dead-letters").body
    assert b'href="/topics/orders/messages/0/20"' in page
    assert b'href="/dead-letters/replay?topic=orders"' in page
    assert get(daemon, "/dead-letters?topic=clicks")["records"] == []
    assert "nowhere" in get(daemon, "/dead-letters?topic=nowhere", 404)["error"]["message"]
    assert get(daemon, "/dead-letters?topic=kept")["topics"] == []


def test_what_is_not_shown_is_counted(daemon: Daemon) -> None:
    found = get(daemon, "/dead-letters?limit=3")
    assert (len(found["records"]), found["more"]) == (3, 7)


def test_the_list_ends_at_its_files_and_says_what_is_left(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_dead_letters, "FILES_MAX", 1)
    found = get(daemon, "/dead-letters?topic=orders")
    (topic,) = found["topics"]
    assert (topic["complete"], topic["files_left"], topic["values"]) == (False, 1, 10)
    assert len(found["records"]) == 5
    assert b"1 file" in daemon.call("GET", "/dead-letters?topic=orders").body
    planned = get(daemon, "/dead-letters/replay?topic=orders")["topics"][0]
    assert (planned["archives"], planned["decoded"], planned["files_left"]) == (1, 4, 1)


def test_the_list_ends_at_its_time(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_dead_letters, "SEARCH_S", 0.0)
    monkeypatch.setattr(reading_dead_letters, "REPLAY_S", 0.0)
    for path in ("/dead-letters", "/dead-letters/replay"):
        found = get(daemon, path)
        assert found["topics"] == []
        assert "orders" in found["topics_left"]
    page = daemon.call("GET", "/dead-letters?limit=7").body
    assert b'href="/dead-letters?topic=orders&amp;limit=7"' in page, "the rest is asked for in the same way"


def test_a_search_stops_inside_of_a_file_once_the_time_is_over(daemon: Daemon) -> None:
    app = daemon.application
    search = Search(100, 60.0, app.clock)
    # It is over when the second record has been read.
    ends = iter([False] * 3 + [True] * 100)
    search.__class__ = type("Ending", (Search,), {"is_over": property(lambda _: next(ends))})
    orders = app.settings.topic("orders")
    assert orders is not None
    report = app.archiving.search_undecoded([orders], ("orders", None), 0, search)
    assert search.files_left == {"orders": 2}
    assert 0 < report.total < 5


def test_a_replay_is_previewed_and_nothing_is_written(daemon: Daemon, deployment: Deployment) -> None:
    stored, entries = deployment.stored(), daemon.application.control_log.tail()
    found = get(daemon, "/dead-letters/replay?topic=orders")
    (topic,) = found["topics"]
    assert (topic["state"], topic["archives"], topic["decoded"], topic["left"]) == ("replayed", 2, 8, 2)
    assert [(one["partition"], one["base"]) for one in topic["ranges"]] == [(0, 0), (1, 0)]
    assert (found["dry_run"], topic["complete"]) == (True, True)
    before = daemon.call("GET", "/dead-letters/replay?topic=orders").body
    assert b"would be replayed; " in before
    assert (deployment.stored(), daemon.application.control_log.tail()) == (stored, entries)
    with Driver(deployment) as driver:
        as_command = vars(replay(driver, dry_run=True))
        assert as_command == {name: topic[name] for name in as_command}
        done = replay(driver)
        assert (done.archives, done.decoded, done.left) == (2, 8, 2)
    command = b"<code>archiver dlq replay --topic orders</code> does it"
    again = get(daemon, "/dead-letters/replay?topic=orders")["topics"][0]
    assert (again["state"], again["left"]) == ("idle", 2)
    page = daemon.call("GET", "/dead-letters/replay?topic=orders").body
    assert (command in before, command in page) == (True, False)
    assert b"2 values (malformed)" in page
    assert b"nothing to do" not in page
    assert b"as raw bytes, without loss" in page
    assert [(one["partition"], one["offset"]) for one in get(daemon, "/dead-letters")["records"]] == [
        (0, 20),
        (1, 20),
    ]


def test_a_lost_archive_does_not_hide_the_others(daemon: Daemon, deployment: Deployment) -> None:
    folder = deployment.data / "archive" / daemon.application.topic("orders").topic_id
    min(folder.rglob("*.parquet")).unlink()
    (found,) = get(daemon, "/dead-letters?topic=orders")["topics"]
    assert "cannot be read" in found["why"]
    assert (found["files"], found["values"]) == (1, 10)
    planned = get(daemon, "/dead-letters/replay?topic=orders")["topics"][0]
    assert (planned["archives"], len(planned["skipped"])) == (1, 1)


def test_reading_is_needed_and_to_describe_is_not_enough(daemon: Daemon) -> None:
    for path in ("/dead-letters", "/dead-letters/replay"):
        assert get(daemon, f"{path}?topic=orders", 403, user("bob"))["error"]
        there, absent = (
            get(daemon, f"{path}?topic={name}", 403, user("alice")) for name in ("orders", "nowhere")
        )
        assert there == absent
        found = get(daemon, path, headers=user("alice"))
        assert {one["topic"] for one in found["topics"]} <= {"clicks"}
        assert b"orders" not in daemon.call("GET", path, headers=user("alice")).body
        assert get(daemon, path, headers=user("bob"))["topics"] == []


def test_one_search_runs_at_a_time(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()
    letters, archiving = DeadLetters(), daemon.application.archiving
    true = archiving.search_undecoded

    def waiting(*given: Any) -> Any:
        begun.set()
        assert release.wait(60)
        return true(*given)

    monkeypatch.setattr(archiving, "search_undecoded", waiting)
    thread = threading.Thread(target=letters.listed, args=(daemon.application, everything, None, 10))
    thread.start()
    try:
        assert begun.wait(60)
        with pytest.raises(RetryLater, match="another reader"):
            letters.replay(daemon.application, everything, None)
    finally:
        release.set()
        thread.join(60)
    assert letters.replay(daemon.application, everything, "orders")["topics"]
