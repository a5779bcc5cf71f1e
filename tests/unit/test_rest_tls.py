"""Which certificates a REST catalog's client trusts, and what it sends, for the catalog and its token server."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.runtime.errors import CatalogAway
from archiver.runtime.ids import SeededIds
from tests.support.log.etcd_certificates import Certificates, make_certificates

IDENTIFIER = ("shop", "orders")


@dataclass
class Secured:
    """A server that is a catalog without tables and a token server, over TLS."""

    uri: str
    certificates: Certificates
    asked: list[tuple[str, bool]] = field(default_factory=list)
    """Path, and whether the client showed a certificate."""


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    certificates = make_certificates(tmp_path / "tls")
    found = Secured("", certificates)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/config" in self.path:
                self._say(200, {"defaults": {}, "overrides": {}})
            else:
                self._say(404, {"error": {"message": "no", "type": "NoSuchTableException", "code": 404}})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._say(200, {"access_token": "t", "token_type": "bearer", "expires_in": 3600})

        def _say(self, status: int, document: object) -> None:
            assert isinstance(self.connection, ssl.SSLSocket)
            found.asked.append((self.path, bool(self.connection.getpeercert())))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Writes nothing to standard error."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that disconnects is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    context.load_verify_locations(certificates.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    found.uri = f"https://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def tables(secured: Secured, **more: str) -> IcebergTables:
    return IcebergTables(
        "lake", {"type": "rest", "uri": secured.uri, **more}, SeededIds(1), RemoteLimits(5.0)
    )


def test_a_certificate_is_verified_by_those_who_are_named(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = str(secured.certificates.authority)
    other = str(make_certificates(tmp_path / "other").authority)
    for changed in (
        {},
        {"ssl.cabundle": other},
        {"credential": "a:b"},
        {"credential": "a:b", "ssl.cabundle": other},
    ):
        with pytest.raises(CatalogAway, match=r"(?i)certificate verify failed"):
            tables(secured, **changed).load(IDENTIFIER)
    assert secured.asked == []
    assert tables(secured, **{"ssl.cabundle": authority}).load(IDENTIFIER) is None
    assert tables(secured, **{"ssl.cabundle": authority, "credential": "a:b"}).load(IDENTIFIER) is None
    assert "/v1/oauth/tokens" in {path for path, _ in secured.asked}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", other)  # requests prefers it to the session's own setting.
    assert tables(secured, **{"ssl.cabundle": authority, "credential": "a:b"}).load(IDENTIFIER) is None
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority)
    with pytest.raises(CatalogAway):
        tables(secured, **{"ssl.cabundle": other}).load(IDENTIFIER)


def test_our_certificate_is_shown_to_the_catalog(secured: Secured) -> None:
    made = secured.certificates
    shown = {
        "ssl.cabundle": str(made.authority),
        "ssl.client.cert": str(made.client),
        "ssl.client.key": str(made.client_key),
    }
    assert tables(secured, **shown).load(IDENTIFIER) is None
    assert {known for _, known in secured.asked} == {True}
