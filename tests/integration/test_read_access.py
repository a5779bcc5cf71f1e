"""Who may read through the port: everybody on loopback, others with a token or as a user of the listener."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from archiver.app.group_reset import reset_alone
from archiver.kafka.users import delete_user
from archiver.runtime.ids import SystemIds
from archiver.web import access
from archiver.web.read_endpoints import VIEWS
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.pages import check_harmless
from tests.support.process.web import TOKEN, Daemon, basic, bearer, kafka_users, read_all

READ_TOKEN = "the token of readers"
ADDRESSES = {
    "topics": "/topics",
    "topic": "/topics/clicks",
    "messages": "/topics/clicks/messages",
    "message": "/topics/clicks/messages/0/0",
    "groups": "/groups",
    "group": "/group?group=readers",
    "dead_letters": "/dead-letters",
    "dead_letter_replay": "/dead-letters/replay",
    "audit": "/audit",
    "runbook": "/runbook",
    "table": "/topics/clicks/table",
    "schema": "/topics/clicks/schema",
    "queries": "/query",
    "query": f"/query/{'0' * 32}",
}
"""An address of each view; there is no such query."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FAILED_WAIT_S", 0.0)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    passwords = {"alice": "wonderland", "bob": "builder"}
    rules = [
        {"principal": "User:alice", "operations": ["read"], "topics": ["clicks"], "groups": ["readers"]},
        {"principal": "User:bob", "operations": ["describe"], "topics": ["*"]},
    ]
    kafka = kafka_users(tmp_path / "users", passwords, rules)
    made = Deployment(tmp_path / "d", overrides={"kafka": kafka})
    with Driver(made) as driver:
        driver.send("clicks", [b"1"], 0)
        app = driver.application
        assert app.settings.kafka is not None
        reset_alone(app, app.settings.kafka, "readers", app.topic("clicks").topic_id, {0: 0})
    return made


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Daemon]:
    with Daemon(deployment, read_token=SecretStr(READ_TOKEN)) as daemon:
        yield daemon


def status(daemon: Daemon, path: str, headers: dict[str, str] | None = None) -> int:
    """Status of the document; that of the page is the same."""
    reply = daemon.call("GET", f"/v1{path}", headers=headers)
    page = daemon.call("GET", path, headers=headers)
    assert page.status == reply.status, path
    assert READ_TOKEN.encode() not in reply.body + page.body
    if reply.status == 401:
        assert reply.headers["www-authenticate"].startswith("Basic ")
        assert page.headers["www-authenticate"].startswith("Basic "), "the browser asks for the login"
    return reply.status


def answered(path: str) -> int:
    """Status for a reader that may see it."""
    return 404 if path == ADDRESSES["query"] else 200


def test_every_view_has_an_address_here() -> None:
    assert set(ADDRESSES) == {view.name for view in VIEWS}


@pytest.mark.parametrize("path", [*ADDRESSES.values()])
def test_reading_needs_a_token_or_a_login(daemon: Daemon, path: str) -> None:
    for wrong in (
        {},
        bearer(""),
        bearer(READ_TOKEN[:-1]),
        bearer(READ_TOKEN.upper()),
        basic("alice", "wonderlan"),
        basic("alice", ""),
        basic("unknown", "wonderland"),
        basic("", "wonderland"),
        {"Authorization": "Basic ?"},
        {"Authorization": "Basic \xe9"},
        {"Authorization": "Basic " + base64.b64encode(b"alice").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"alice\0:wonderland").decode()},
        {"Authorization": "Digest alice"},
        {"Authorization": "Basic " + "A" * 5000},
    ):
        assert status(daemon, path, wrong) == 401, wrong
    for right in (
        bearer(READ_TOKEN),
        bearer(TOKEN),
        basic("any name", READ_TOKEN),
        basic("", TOKEN),
        basic("alice", "wonderland"),
    ):
        assert status(daemon, path, right) == answered(path), right


def test_rules_decide_what_a_user_sees(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = basic("alice", "wonderland"), basic("bob", "builder")

    def topics(headers: dict[str, str]) -> list[str]:
        document: dict[str, Any] = daemon.call("GET", "/v1/topics", headers=headers).json()
        return [one["topic"] for one in document["topics"]]

    assert topics(alice) == ["clicks"]
    assert topics(bob) == topics(bearer(READ_TOKEN)) == ["clicks", "files", "kept", "orders"]
    asked: list[str] = []
    monkeypatch.setattr(daemon.face.reads, "traffic", asked.append)
    page = daemon.call("GET", "/topics", headers=alice).body
    assert asked == ["clicks"], "the traffic of other topics is not read"
    assert b"clicks" in page
    assert b"orders" not in page
    assert status(daemon, "/topics/orders", bob) == 200
    assert status(daemon, "/topics/clicks/messages", bob) == 403, "to describe is not to read"
    assert status(daemon, "/topics/clicks/messages/0/0", bob) == 403
    assert status(daemon, "/topics/clicks/messages", alice) == 200


def test_a_refusal_does_not_say_whether_the_topic_exists(daemon: Daemon) -> None:
    alice = basic("alice", "wonderland")
    for path in ("/topics/{}", "/topics/{}/messages", "/topics/{}/messages/0/0", "/topics/{}/messages/99/0"):
        there, absent = (
            daemon.call("GET", f"/v1{path.format(name)}", headers=alice) for name in ("orders", "nowhere")
        )
        assert (there.status, there.body) == (absent.status, absent.body)
        assert there.status == 403


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/topics/{}/messages?from=yesterday", False),
        ("/topics/{}/messages?partition=99", False),
        ("/dead-letters?topic={}", True),
        ("/dead-letters?topic={}&limit=0", True),
    ],
)
def test_a_page_does_not_say_whether_the_topic_exists(daemon: Daemon, path: str, form: bool) -> None:
    pages = []
    for name in ("orders", "nowhere"):
        reply = daemon.call("GET", path.format(name), headers=basic("alice", "wonderland"))
        assert reply.status == 403, "before the other parameters are read"
        seen = check_harmless(reply)
        assert ("topic" in seen.fields) == form
        text, _, _ = seen.text.partition("Cluster ")
        pages.append((seen.tags, seen.alerts, text.replace(name, "")))
    assert pages[0] == pages[1]


def test_the_overview_is_for_readers_of_everything(daemon: Daemon) -> None:
    assert daemon.call("GET", "/").status == 401
    assert daemon.call("GET", "/", headers=bearer(READ_TOKEN)).status == 200
    reply = daemon.call("GET", "/", headers=basic("bob", "builder"))
    assert (reply.status, reply.headers["location"]) == (303, "/topics")


def test_no_token_reads_administration_or_sends(daemon: Daemon) -> None:
    assert daemon.call("GET", "/v1/admin/status", headers=bearer(READ_TOKEN)).status == 403
    assert daemon.call("GET", "/v1/admin/status", headers=basic("any", TOKEN)).status == 401


def test_health_and_metrics_need_no_login(daemon: Daemon) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/style.css"):
        assert daemon.call("GET", path).status == 200, path


def test_loopback_is_open_unless_a_proxy_passes_the_request_on(deployment: Deployment) -> None:
    with Daemon(deployment) as daemon:
        for path in ADDRESSES.values():
            assert status(daemon, path) == answered(path)
            for header in ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP"):
                assert status(daemon, path, {header: "x"}) == 401, header
            with daemon.raw() as connection:
                connection.sendall(f"GET /v1{path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
                assert read_all(connection).startswith(b"HTTP/1.1 401"), "as nginx asks by default"
            forwarded = {"X-Forwarded-For": "192.0.2.1", **basic("alice", "wonderland")}
            assert status(daemon, path, forwarded) == answered(path)


def test_other_addresses_ask_although_no_token_is_set(deployment: Deployment) -> None:
    with Daemon(deployment, listen="0.0.0.0:0", allow_http=True) as daemon:
        assert status(daemon, "/topics") == 401
        assert status(daemon, "/topics", bearer(TOKEN)) == 200
        assert status(daemon, "/topics", basic("bob", "builder")) == 200


def test_without_users_only_tokens_count(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d"), read_token=SecretStr(READ_TOKEN)) as daemon:
        assert status(daemon, "/topics", basic("alice", "wonderland")) == 401
        assert status(daemon, "/topics", basic("alice", READ_TOKEN)) == 200


def test_a_password_is_checked_once_a_minute(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    principal = daemon.logins.principal  # type: ignore[union-attr]

    def counted(name: str, password: str) -> str | None:
        checked.append(name)
        return principal(name, password)

    monkeypatch.setattr(daemon.logins, "principal", counted)
    for _ in range(3):
        assert status(daemon, "/topics", basic("alice", "wonderland")) == 200
    assert checked == ["alice"]
    for _ in range(2):
        assert daemon.call("GET", "/topics", headers=basic("alice", "wrong")).status == 401
    assert checked == ["alice"] * 3, "what was wrong is checked each time"


def test_a_deleted_user_is_out_after_a_minute(
    daemon: Daemon, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status(daemon, "/topics", basic("bob", "builder")) == 200
    delete_user(deployment.root.parent / "users", "bob", SystemIds())
    monkeypatch.setattr(access, "KEPT_S", 0.0)
    assert status(daemon, "/topics", basic("bob", "builder")) == 401


def test_users_that_cannot_be_read_are_no_wrong_password(daemon: Daemon, deployment: Deployment) -> None:
    (deployment.root.parent / "users").unlink()
    reply = daemon.call("GET", "/v1/topics", headers=basic("alice", "wonderland"))
    assert (reply.status, reply.json()["error"]["type"]) == (503, "RetryLater")
    assert str(deployment.root).encode() not in reply.body
    assert status(daemon, "/topics", bearer(READ_TOKEN)) == 200


def test_logins_have_a_bound(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LOGINS_OPEN_MAX", 2)
    begun, release = threading.Semaphore(0), threading.Event()

    def waiting(_name: str, _password: str) -> str | None:
        begun.release()
        assert release.wait(60)
        return None

    monkeypatch.setattr(daemon.logins, "principal", waiting)
    found: list[int] = []
    threads = [
        threading.Thread(
            target=lambda number=number: found.append(
                daemon.call("GET", "/v1/topics", headers=basic("alice", f"guess {number}")).status
            )
        )
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=60)
    try:
        # The third is refused while the first two wait.
        threads_left = [thread for thread in threads if thread.is_alive()]
        while not found:
            threads_left[0].join(0.05)
        assert found == [429]
        assert daemon.call("GET", "/healthz").status == 200
        assert status(daemon, "/topics", bearer(READ_TOKEN)) == 200
    finally:
        release.set()
        for thread in threads:
            thread.join(60)
    assert sorted(found) == [401, 401, 429]
