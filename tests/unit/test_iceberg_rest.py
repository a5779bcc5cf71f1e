"""Requests to a REST catalog end, also those that pyiceberg sends before it returns its session."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.runtime.errors import CatalogAway
from archiver.runtime.ids import SeededIds

TIMEOUT_S = 1.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


SIGNED = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "x",
    "client.access-key-id": "a",
    "client.secret-access-key": "b",
}


@pytest.mark.parametrize(
    "credential", [{}, {"credential": "id:secret"}, SIGNED], ids=["configuration", "token", "signed"]
)
def test_a_server_that_is_silent_is_not_waited_for_for_ever(silent: str, credential: dict[str, str]) -> None:
    """A catalog with a credential requests a token first. pyiceberg sends a signed request eleven times."""
    tables = IcebergTables(
        "lake", {"type": "rest", "uri": silent, **credential}, SeededIds(1), RemoteLimits(TIMEOUT_S)
    )
    found: list[object] = []

    def load() -> None:
        try:
            found.append(tables.load(("shop", "orders")))
        except CatalogAway as error:
            found.append(error)

    began_s = time.monotonic()
    asking = threading.Thread(target=load, daemon=True)
    asking.start()
    asking.join(60)
    assert not asking.is_alive(), "it waits without a bound, and other users of the catalog wait for it"
    assert [type(one) for one in found] == [CatalogAway]
    assert time.monotonic() - began_s < 8 * TIMEOUT_S
