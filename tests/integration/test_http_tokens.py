"""Tokens: every route of administration requires one, and records require one where it is set."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import SecretStr
from starlette.routing import Route

from archiver.config.settings import load_settings
from archiver.runtime.errors import ConfigInvalid
from archiver.web import error_responses
from archiver.web.app import create_app
from archiver.web.openapi import ENDPOINTS
from tests.support.builders.deployment import Deployment
from tests.support.process.web import TOKEN, Daemon

PUBLIC = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/style.css", "/v1/topics/{topic}/records"}
"""Paths that answer without a token; the last only where none is set for it."""
SENDING = "the word of the senders"
WRONG = [
    (None, 401),
    ("", 401),
    ("Bearer", 401),
    ("Bearer ", 401),
    (TOKEN, 401),
    (f"Basic {TOKEN}", 401),
    (f"Bearer {TOKEN.upper()}", 403),
    (f"Bearer {TOKEN.title()}", 403),
    (f"Bearer {TOKEN[:-1]}", 403),
    (f"Bearer {TOKEN}x", 403),
    (f"Bearer {TOKEN[1:]}", 403),
    (f"Bearer {TOKEN} {TOKEN}", 403),
    (f"Bearer {SENDING}", 403),
    ("Bearer *", 403),
    ("Bearer None", 403),
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d"), produce_token=SecretStr(SENDING)) as daemon:
        yield daemon


def routes(daemon: Daemon) -> list[Route]:
    """The routes of the application itself, so that none can be forgotten."""
    guarded: Any = create_app(daemon.face)
    return list(guarded._app.routes)


def test_every_route_is_public_by_name_or_asks_for_the_token(daemon: Daemon) -> None:
    asked: list[str] = []
    daemon.operations.gate = lambda _: asked.append("work")
    # Reading has rules and tests of its own (test_read_access.py).
    reading = {one.path for one in ENDPOINTS if one.reads}
    closed = [route for route in routes(daemon) if route.path not in PUBLIC | reading]
    assert len(closed) >= 7
    assert {route.path.rpartition("/")[0] for route in closed} == {"/v1/admin"}
    for route in closed:
        for method in sorted(route.methods or ()):
            for given, status in WRONG:
                headers = {} if given is None else {"Authorization": given}
                for body in (None, b'{"topic": "../x"}', b"not JSON"):
                    reply = daemon.call(method, route.path, body, headers)
                    assert reply.status == status, (method, route.path, given)
                    assert TOKEN.encode() not in reply.body
            assert (
                daemon.call(method, f"{route.path}?token={quote(TOKEN)}&access_token={quote(TOKEN)}").status
                == 401
            ), "an address is no place for it"
            assert daemon.call(method, route.path, headers={"Cookie": f"token={TOKEN}"}).status == 401
    assert asked == []


def test_tokens_are_compared_in_constant_time(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    class Spied:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(error_responses, "hmac", Spied)
    assert daemon.call("GET", "/v1/admin/status", headers={"Authorization": "Bearer x"}).status == 403
    assert daemon.call("GET", "/v1/admin/status", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert daemon.send("clicks", b'{"value": null}', Authorization="Bearer y").status == 403
    assert compared == [(b"x", TOKEN.encode()), (TOKEN.encode(), TOKEN.encode()), (b"y", SENDING.encode())]


def test_records_ask_for_their_token_where_one_is_set(daemon: Daemon, tmp_path: Path) -> None:
    for given, status in [
        (None, 401),
        (f"Bearer {SENDING.upper()}", 403),
        (f"Bearer {SENDING[:-1]}", 403),
        (f"Bearer {TOKEN}", 403),
    ]:
        headers = {} if given is None else {"Authorization": given}
        reply = daemon.send("clicks", b'{"value": null}', **headers)
        assert (reply.status, "nothing was sent" in reply.error) == (status, True)
        assert daemon.send("nowhere", b"not JSON", **headers).status == status, (
            "a client without the token learns nothing"
        )
    assert daemon.stored("clicks") == {}
    assert daemon.send("clicks", b'{"value": null}', Authorization=f"Bearer {SENDING}").status == 200
    assert len(daemon.stored("clicks")) == 1
    with Daemon(Deployment(tmp_path / "open")) as other:
        assert other.send("clicks", b'{"value": null}').status == 200


def test_the_token_of_records_is_never_written_in_the_configuration(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    (deployment.root / "sending").write_text(f"{SENDING}\n")
    deployment.write({**deployment.document(), "http": {"produce_token": {"file": "sending"}}})
    settings = load_settings(deployment.config, {})
    assert settings.http.produce_token == SecretStr(SENDING)
    assert SENDING not in repr(settings)
    shown = deployment.cli("config", "show")
    assert (shown.code, SENDING in shown.out + shown.err) == (0, False)


@pytest.mark.parametrize(
    "topic",
    ["..%2f..%2fevil", "%2e%2e", ".%2e/x", "a%00b", "a%0ab", "%3Cscript%3E", "clicks%2f..", "a" * 300],
)
def test_no_path_of_a_request_becomes_a_path_of_ours(daemon: Daemon, topic: str) -> None:
    reply = daemon.send(topic, b'{"value": null}', Authorization=f"Bearer {SENDING}")
    assert reply.status in (400, 404), reply.body
    assert reply.headers["content-type"] == "application/json"
    assert not list(daemon.deployment.root.rglob("*evil*"))


@pytest.mark.parametrize("key", ["admin_token", "produce_token"])
def test_a_token_that_could_be_guessed_is_refused(tmp_path: Path, key: str) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write({**deployment.document(), "http": {key: {"file": "short"}}})
    reported = rf"http\.{key}: has fewer than 16 characters, .*; make one with: openssl rand -hex 32"
    for guessed in ("", "hunter2\n", "fifteen-letters", "   fifteen-letters   "):
        (deployment.root / "short").write_text(guessed)
        with pytest.raises(ConfigInvalid, match=reported) as caught:
            load_settings(deployment.config, {})
        assert "hunter2" not in str(caught.value)
        assert "fifteen" not in str(caught.value)
    (deployment.root / "short").write_text("sixteen-letters!\n")
    assert getattr(load_settings(deployment.config, {}).http, key) == SecretStr("sixteen-letters!")
