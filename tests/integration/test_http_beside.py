"""Commands next to a daemon: they go through it, with the output and exit code they have alone.

They run by themselves if it cannot serve them.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.cli import admin_client
from archiver.runtime.admin_proof import proof
from archiver.runtime.errors import LeaseHeld
from archiver.web import admin
from tests.support.builders.deployment import Deployment, jsonl, sample_records
from tests.support.builders.driver import AheadClock, Driver
from tests.support.process.web import TOKEN, Daemon


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Records of three hours ago are archived, except those of a topic without archives; records sent now are
    not. Proxies lead nowhere."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    return made_three_hours_ago(tmp_path / "d")


def made_three_hours_ago(root: Path) -> Deployment:
    made = Deployment(root)
    clock = AheadClock()
    clock.ahead_s = -3 * 3600
    with Driver(made, clock) as driver:
        for topic in ("orders", "clicks", "files", "kept"):
            driver.send(topic, [b"1", b"2"], 0)
        driver.archive()
    return made


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Daemon]:
    """A daemon, and a configuration by which commands find it."""
    with Daemon(deployment) as daemon:
        point_at(daemon)
        with daemon.application.leadership.turn():
            pass  # a daemon keeps the lease between its turns
        yield daemon


def point_at(daemon: Daemon, **http: Any) -> None:
    (daemon.deployment.root / "token").write_text(TOKEN)
    listen = "{}:{}".format(*daemon.address)
    document = {
        **daemon.deployment.document(),
        "http": {"listen": listen, "admin_token": {"file": "token"}, **http},
    }
    daemon.deployment.write({name: value for name, value in document.items() if value is not None})


def without_numbers(text: str) -> str:
    return re.sub(r"[0-9A-Z]{26}|\d+", "N", text)


def test_clean_prints_what_it_prints_by_itself(daemon: Daemon, tmp_path: Path) -> None:
    twin = made_three_hours_ago(tmp_path / "twin")
    asked: list[str] = []
    daemon.operations.gate = lambda _: asked.append("clean")
    through, itself = daemon.deployment.cli("clean"), twin.cli("clean")
    assert asked == ["clean"]
    assert through.code == itself.code == 0
    assert "marked for deletion: 3" in through.out
    assert without_numbers(through.out) == without_numbers(itself.out)
    assert through.err == itself.err
    assert "3 objects marked for deletion" in through.err
    documents = [one.cli("clean", "--output", "json").json() for one in (daemon.deployment, twin)]
    assert documents[0].keys() == documents[1].keys()
    assert [one["waiting"] for one in documents] == [3, 3]
    assert asked == ["clean", "clean"]


def test_archive_goes_through_the_daemon_and_says_what_it_says(daemon: Daemon) -> None:
    asked: list[str] = []
    daemon.operations.gate = lambda _: asked.append("archive")
    records = [record for record in sample_records(60) if record["topic"] == "files"]
    assert (
        daemon.send("files", jsonl([{**record, "partition": 0} for record in records]).encode()).status == 200
    )
    done = daemon.deployment.cli("archive", "--topic", "files:0", "--all", "--output", "json")
    assert (done.code, asked) == (0, ["archive"]), done.err
    assert [(topic["topic"], topic["state"], topic["rows"]) for topic in done.json()["topics"]] == [
        ("files", "archived", len(records))
    ]
    assert done.err.splitlines()
    assert "not asked" not in done.err
    text = daemon.deployment.cli("archive", "--topic", "files")
    assert text.code == 0
    assert re.search(r"files +│ idle", text.out), text.out


def test_replay_goes_through_the_daemon_and_listing_does_not(daemon: Daemon) -> None:
    asked: list[str] = []
    daemon.operations.gate = lambda _: asked.append("replay")
    listed = daemon.deployment.cli("dlq", "list", "--topic", "orders", "--output", "json")
    assert (listed.code, asked) == (0, []), listed.err
    assert [(item["partition"], item["offset"], item["cause"]) for item in listed.json()["records"]] == [
        (0, 0, "malformed"),
        (0, 1, "malformed"),
    ]
    dry = daemon.deployment.cli("dlq", "replay", "--dry-run", "--output", "json")
    assert (dry.code, asked, dry.json()["dry_run"]) == (0, [], True), dry.err
    done = daemon.deployment.cli(
        "dlq", "replay", "--topic", "orders:0-1", "--max-files", "7", "--output", "json"
    )
    assert (done.code, asked) == (0, ["replay"]), done.err
    assert [(item["topic"], item["state"], item["left"]) for item in done.json()["topics"]] == [
        ("orders", "idle", 2)
    ]
    refused = daemon.deployment.cli("dlq", "replay", "--topic", "nix")
    assert (refused.code, "there is no topic nix" in refused.err) == (3, True)
    for arguments in (("list",), ("replay",)):
        assert "orders" in daemon.deployment.cli("dlq", *arguments).out


def test_errors_are_the_commands_own(daemon: Daemon) -> None:
    through = daemon.deployment.cli("archive", "--topic", "nix")
    assert (through.code, through.out) == (3, "")
    assert through.err.startswith("error: there is no topic nix")
    assert daemon.deployment.cli("archive", "--topic", "orders:x").code == 3


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_exit_code_is_the_daemons(daemon: Daemon, code: int) -> None:
    from archiver.runtime.exit_codes import Done

    daemon.operations.archive = lambda *_: Done({"epoch": 1, "rounds": 0, "topics": []}, code)  # type: ignore[method-assign]
    assert daemon.deployment.cli("archive").code == code


def test_a_held_lease_names_its_holder_when_the_daemon_cannot_be_asked(daemon: Daemon) -> None:
    me = f"{socket.gethostname()}:{os.getpid()}"
    point_at(daemon, admin_token=None)
    done = daemon.deployment.cli("clean")
    assert done.code == 2
    assert "is not asked: this user cannot read a token" in done.err
    assert f"error: the lease is held by {me}" in done.err
    token = daemon.deployment.root / "metadata.db.admin-token"
    token.write_text("wrong\n")
    token.chmod(0o600)
    done = daemon.deployment.cli("clean")
    assert (done.code, "does not prove that it knows the token" in done.err) == (2, True), done.err
    assert "wait until" not in done.err
    token.write_text(f"{TOKEN}\n")
    assert daemon.deployment.cli("clean").code == 0
    token.chmod(0o640)
    done = daemon.deployment.cli("clean")
    assert (done.code, "is not asked: this user cannot read a token" in done.err) == (2, True), (
        "others could read it, so it is no secret"
    )


def test_without_the_role_the_command_does_it_by_itself(deployment: Deployment) -> None:
    with Daemon(deployment, roles=frozenset({"intake"})) as daemon:
        point_at(daemon)
        daemon.operations.gate = lambda _: pytest.fail("it was asked")
        done = deployment.cli("clean")
        assert done.code == 0
        assert "marked for deletion: 3" in done.out
        daemon.journal.becomes("starting")
        assert deployment.cli("clean").code == 0


def test_another_cluster_at_that_address_is_not_asked(deployment: Deployment, tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "other")) as other:
        other.operations.gate = lambda _: pytest.fail("it was asked")
        deployment.write({**deployment.document(), "http": {"listen": "{}:{}".format(*other.address)}})
        done = deployment.cli("clean")
        assert (done.code, done.err.count("daemon")) == (0, 0), done.err


def test_a_dry_run_asks_no_one(daemon: Daemon) -> None:
    daemon.operations.gate = lambda _: pytest.fail("it was asked")
    assert "would be marked for deletion: 3" in daemon.deployment.cli("clean", "--dry-run").out


class Impostor:
    """Answers requests on one connection with bytes of the test's choosing, in turn; records what it was
    sent."""

    def __init__(self, *answers: bytes | Callable[[bytes], bytes]) -> None:
        self.asked: list[bytes] = []
        self._answers = answers
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._server.accept()
        with client:
            client.settimeout(20)
            for answer in self._answers:
                self.asked.append(client.recv(65536))
                if not self.asked[-1]:
                    return
                client.sendall(answer if isinstance(answer, bytes) else answer(self.asked[-1]))
            client.shutdown(socket.SHUT_WR)
            try:
                while rest := client.recv(65536):  # Unread bytes would turn the end into a reset.
                    self.asked[-1] += rest
            except ConnectionError:
                pass  # The command has not read to the end, and need not.

    def close(self) -> None:
        self._thread.join(30)
        self._server.close()


def health(cluster_id: str, token: str = TOKEN) -> Callable[[bytes], bytes]:
    """A daemon with that token."""

    def answer(asked: bytes) -> bytes:
        challenge = asked.partition(b"challenge=")[2].split()[0].decode()
        port = int(asked.partition(b"Host: 127.0.0.1:")[2].split()[0])
        head = (
            f"Archiver-Cluster-Id: {cluster_id}\r\nArchiver-Proof: "
            f"{proof(token, challenge, '127.0.0.1', port)}\r\n"
        )
        return f"HTTP/1.1 200 OK\r\n{head}Content-Length: 2\r\n\r\n{{}}".encode()

    return answer


def stream(*lines: str) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
        + "".join(line + "\n" for line in lines).encode()
    )


@pytest.mark.parametrize(
    ("answer", "code", "reported"),
    [
        (stream('{"progress": "half"}'), 2, "ended in the middle of the work"),
        (stream("[]"), 2, "does not understand"),
        (stream('{"alive": true}', "{"), 2, "does not understand"),
        (stream('{"error": {"type": "Unheard", "message": "of", "exit_code": 1}}'), 1, "error: of"),
        (stream('{"error": {"type": "SystemExit", "message": "no", "exit_code": 3}}'), 3, "error: no"),
        (b"", 2, "fell silent"),
        (b"HTTP/1.1 429 no\r\nContent-Length: 2\r\n\r\n{}", 2, "has too much to do"),
        (b"HTTP/1.1 500 no\r\nContent-Length: 2\r\n\r\n{}", 2, "it answered 500"),
    ],
)
def test_what_was_begun_and_never_ended_is_not_reported_as_done(
    deployment: Deployment, answer: bytes, code: int, reported: str
) -> None:
    with Driver(deployment) as driver:
        cluster_id = driver.application.cluster.cluster_id
    impostor = Impostor(health(cluster_id), answer)
    try:
        (deployment.root / "token").write_text(TOKEN)
        http = {"listen": f"127.0.0.1:{impostor.port}", "admin_token": {"file": "token"}}
        deployment.write({**deployment.document(), "http": http})
        done = deployment.cli("clean")
        assert (done.code, reported in done.err, done.out) == (code, True, ""), done.err
    finally:
        impostor.close()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 429 no\r\nContent-Length: 2\r\n\r\n{}", "has too much to do"),
        (stream('{"progress": "half"}'), "ended in the middle of the work"),
        (stream('{"error": {"type": "RetryLater", "message": "of", "exit_code": 2}}'), "of"),
    ],
)
def test_a_daemon_in_trouble_does_not_withhold_the_verdict(
    deployment: Deployment, answer: bytes, cause: str
) -> None:
    with Driver(deployment) as driver:
        cluster_id = driver.application.cluster.cluster_id
    fake = Impostor(health(cluster_id), answer)
    try:
        (deployment.root / "token").write_text(TOKEN)
        http = {"listen": f"127.0.0.1:{fake.port}", "admin_token": {"file": "token"}}
        deployment.write({**deployment.document(), "http": http})
        done = deployment.cli("audit", "--output", "json")
        assert (done.code, done.json()["verdict"]) == (0, "valid"), done.err
        assert cause in done.err
        assert "the audit is done here" in done.err
    finally:
        fake.close()


def test_a_program_that_took_the_port_learns_no_token(deployment: Deployment) -> None:
    """Any client can read the cluster's id from a running daemon, and take its port when it has ended."""
    with Driver(deployment) as driver:
        cluster_id = driver.application.cluster.cluster_id
    (deployment.root / "token").write_text(TOKEN)
    impostor = Impostor(health(cluster_id, "a guess"), stream('{"alive": true}'))
    try:
        http = {"listen": f"127.0.0.1:{impostor.port}", "admin_token": {"file": "token"}}
        deployment.write({**deployment.document(), "http": http})
        done = deployment.cli("clean")
        assert (done.code, "does not prove that it knows the token" in done.err) == (0, True), done.err
        assert "marked for deletion: 3" in done.out
    finally:
        impostor.close()
    assert len([asked for asked in impostor.asked if asked]) == 1
    assert TOKEN.encode() not in b"".join(impostor.asked)


def test_a_program_that_took_the_port_cannot_have_the_question_answered_elsewhere(daemon: Daemon) -> None:
    """Another daemon with the same token answers any client, for its own address."""

    def relayed(asked: bytes) -> bytes:
        challenge = asked.partition(b"challenge=")[2].split()[0].decode()
        answer = daemon.call("GET", f"/healthz?challenge={challenge}").headers
        head = "".join(f"{name}: {answer[name]}\r\n" for name in ("archiver-cluster-id", "archiver-proof"))
        return f"HTTP/1.1 200 OK\r\n{head}Content-Length: 2\r\n\r\n{{}}".encode()

    impostor = Impostor(relayed, stream('{"alive": true}'))
    try:
        point_at(daemon, listen=f"127.0.0.1:{impostor.port}")
        done = daemon.deployment.cli("clean")
        assert "does not prove that it knows the token" in done.err, done.err
    finally:
        impostor.close()
    assert len([asked for asked in impostor.asked if asked]) == 1
    assert TOKEN.encode() not in b"".join(impostor.asked)


def test_a_challenge_is_answered_and_bounded(daemon: Daemon) -> None:
    challenge, port = "0a" * 32, daemon.address[1]
    found = daemon.call("GET", f"/healthz?challenge={challenge}").headers["archiver-proof"]
    assert (
        found
        == proof(TOKEN, challenge, "127.0.0.1", port)
        == proof(TOKEN, challenge, "::ffff:127.0.0.1", port)
    )
    assert "archiver-proof" not in daemon.call("GET", "/healthz").headers
    for wrong in ("", "0a", "0A" * 32, "0a" * 33, "zz" * 32):
        assert daemon.call("GET", f"/healthz?challenge={wrong}").status == 400


def test_a_leader_that_cannot_be_reached_is_named_and_why(daemon: Daemon) -> None:
    me = f"{socket.gethostname()}:{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    point_at(daemon, listen=f"127.0.0.1:{free}")
    done = daemon.deployment.cli("clean")
    assert done.code == 2
    assert f"the lease is held by {me}" in done.err
    assert f"no daemon of this cluster answers at 127.0.0.1:{free}" in done.err
    assert "wait until" not in done.err
    point_at(daemon, listen="127.0.0.1:0")
    assert "does not name the port" in daemon.deployment.cli("clean").err


def test_a_daemon_that_does_not_lead_says_who_does(daemon: Daemon) -> None:
    def held(_: object) -> None:
        raise LeaseHeld("elsewhere:7")

    daemon.operations.gate = held
    done = daemon.deployment.cli("clean")
    assert done.code == 2
    assert "does not lead: the lease is held by elsewhere:7" in done.err


def test_redirects_are_not_followed_and_the_token_goes_nowhere_else(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        cluster_id = driver.application.cluster.cluster_id
    aim = socket.create_server(("127.0.0.1", 0))
    moved = (
        f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{aim.getsockname()[1]}/\r\nContent-Length: "
        f"2\r\n\r\n{{}}"
    ).encode()
    impostor = Impostor(health(cluster_id), moved)
    try:
        (deployment.root / "token").write_text(TOKEN)
        http = {"listen": f"127.0.0.1:{impostor.port}", "admin_token": {"file": "token"}}
        deployment.write({**deployment.document(), "http": http})
        done = deployment.cli("clean")
        assert (done.code, "marked for deletion: 3" in done.out) == (0, True), "done by itself"
        aim.settimeout(0.2)
        with pytest.raises(TimeoutError):
            aim.accept()
        assert TOKEN.encode() not in impostor.asked[0]
        assert TOKEN not in done.err + done.out
    finally:
        impostor.close()
        aim.close()


def test_a_daemon_that_says_nothing_for_long_is_given_up(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_client, "SILENCE_S", 1.5)
    monkeypatch.setattr(admin, "ALIVE_S", 60.0)
    go_on = threading.Event()
    daemon.operations.gate = lambda _: [None, None][go_on.wait(60)]
    try:
        done = daemon.deployment.cli("clean")
        assert (done.code, "fell silent" in done.err) == (2, True), done.err
    finally:
        go_on.set()


def test_signs_of_life_keep_it_waiting(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "SILENCE_S", 3.0)
    monkeypatch.setattr(admin, "ALIVE_S", 0.1)
    daemon.operations.gate = lambda _: [None, None][threading.Event().wait(5.0)]
    assert daemon.deployment.cli("clean").code == 0


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("127.0.0.1:8787", ("127.0.0.1", 8787)),
        ("0.0.0.0:80", ("127.0.0.1", 80)),
        ("[::]:80", ("::1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:80", ("localhost", 80)),
        ("127.0.0.1:0", None),
    ],
)
def test_where_to_knock(listen: str, place: tuple[str, int] | None) -> None:
    assert admin_client.place_of(listen) == place
