"""The admin client bounds responses without an end and JSON that is too deep, from any server at the daemon's
address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.cli import admin_client
from archiver.runtime.errors import OutcomeUnknown
from tests.support.builders.deployment import Deployment

DEEP = b"[" * 1_000_000
OTHER = b"Archiver-Cluster-Id: nothing\r\n"


class Endless:
    """A response without an end: it returns as many bytes as each read asks for."""

    status = 503

    def read(self, size: int = -1) -> bytes:
        assert 0 < size <= 2**26, "asked without a bound"
        return b"x" * 1000

    readline = read


@pytest.mark.parametrize("follow", [admin_client._result_of, admin_client._not_begun])
def test_an_answer_without_an_end_is_cut(follow: Any) -> None:
    with pytest.raises(OutcomeUnknown, match="does not understand"):
        follow(Endless(), "the daemon")


@pytest.fixture
def listener() -> Iterator[int]:
    """Answers every request with a head and a megabyte of open brackets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    head = b"HTTP/1.1 200 OK\r\n" + OTHER + b"Content-Length: %d\r\n\r\n" % len(DEEP)
                    client.sendall(head + DEEP)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_status_with_a_listener_that_answers_too_deep(tmp_path: Path, listener: int) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write({**deployment.document(), "http": {"listen": f"127.0.0.1:{listener}"}})
    done = deployment.cli("status", "--output", "json")
    assert (done.code, done.json()["daemon"]) == (0, None), done.err
