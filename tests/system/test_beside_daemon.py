"""Commands during a running `archiver serve`: they go through it while it holds the lease, and work by
themselves when it has gone."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment, jsonl, sample_records
from tests.support.process.processes import Command, until

LAZY = {"start_delay_max": "1h", "complete_delay_max": "1h", "idle_max": "1h", "tick": "200ms"}
"""The daemon ticks, so it leads, and archives nothing before it is asked to."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that no other process gets: bound and never listened on, so that the daemon can have it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def ask(
    port: int, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """One request; status 0 if the connection is refused."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
        except ConnectionRefusedError:
            return 0, b""
        return response.status, response.read()


def leads(deployment: Deployment, me: str) -> bool:
    lease = deployment.root / "metadata.db.lease"
    return lease.exists() and lease.read_text().strip() == me


@pytest.mark.spark
@pytest.mark.slow
def test_commands_next_to_a_daemon(tmp_path: Path) -> None:
    with reserved_port() as port:
        deployment = Deployment(
            tmp_path / "d", overrides={"http": {"listen": f"127.0.0.1:{port}"}, "archive": LAZY}
        )
        with Command(deployment, "serve", scratch=tmp_path / "scratch") as daemon:
            until("the daemon is ready", lambda: ask(port, "GET", "/readyz")[0] == 200)
            me = f"{socket.gethostname()}:{daemon.pid}"
            until("the daemon leads", lambda: leads(deployment, me))
            records = [record for record in sample_records(60) if record["topic"] == "files"]
            status, body = ask(
                port,
                "POST",
                "/v1/topics/files/records",
                jsonl(records),
                {"Content-Type": "application/x-ndjson"},
            )
            assert (status, len(body.splitlines())) == (200, len(records)), body
            for record, line, got in zip(
                records, body.splitlines(), deployment.consume("files"), strict=True
            ):
                place = json.loads(line)
                assert (got["partition"], got["offset"]) == (place["partition"], place["offset"])
                assert all(
                    got[name] == record[name] for name in ("topic", "timestamp", "key", "value", "headers")
                )
            archived = deployment.cli("archive", "--topic", "files", "--all", "--output", "json")
            assert archived.code == 0, archived.err
            assert [
                (topic["topic"], topic["state"], topic["rows"]) for topic in archived.json()["topics"]
            ] == [("files", "archived", len(records))]
            assert "daemon" not in archived.err
            cleaned = deployment.cli("clean")
            assert (cleaned.code, "marked and not deleted yet: 0" in cleaned.out) == (0, True), cleaned.err
            replayed = deployment.cli("dlq", "replay", "--output", "json")
            assert (replayed.code, replayed.json()["dry_run"], "daemon" in replayed.err) == (
                0,
                False,
                False,
            ), replayed.err
            assert [topic["topic"] for topic in replayed.json()["topics"]] == ["clicks", "files", "orders"]
            token = deployment.root / "metadata.db.admin-token"
            assert token.stat().st_mode & 0o777 == 0o600
            token.rename(tmp_path / "token")
            refused = deployment.cli("clean")
            assert refused.code == 2
            assert f"the lease is held by {me}" in refused.err
            assert ask(port, "POST", "/v1/admin/clean")[0] == 401
            secret = (tmp_path / "token").read_text().strip()
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 0, daemon.err
            assert not any(secret in line for line in daemon.err + daemon.out)
        alone = deployment.cli("archive", "--output", "json")
        assert (alone.code, [topic["state"] for topic in alone.json()["topics"]]) == (0, ["idle"] * 3), (
            alone.err
        )
        assert len(deployment.consume("files")) == len(records)
