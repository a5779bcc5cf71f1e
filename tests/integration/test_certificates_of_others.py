"""A certificate that our authority signed for another machine is rejected, and its holder receives nothing of
ours.

The tests of each client cover who signed a certificate; docs/operations/security.md names them.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import ValidationError

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.config.groups import CatalogSettings
from archiver.config.registry import ConfluentSettings, RegistryTlsSettings
from archiver.config.telemetry import OtlpSettings
from archiver.daemon import otlp
from archiver.objects.location import S3Options, StorePlace
from archiver.objects.s3.store import S3ObjectStore
from archiver.registry.http import RegistryHttp
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import SeededIds
from tests.support.log.etcd_certificates import make_certificates

BOUND_S = 5.0
LIMITS = RemoteLimits(BOUND_S)


@dataclass
class Elsewhere:
    """A server on 127.0.0.1 with a certificate for `host`."""

    authority: Path
    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest.fixture(params=["127.0.0.2", "127.0.0.1"], ids=["another_machine", "this_machine"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    made = make_certificates(tmp_path / "tls", host=request.param)
    found = Elsewhere(made.authority)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            found.asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Write nothing to standard error."""

    for method in ("GET", "HEAD", "POST", "PUT"):
        setattr(Handler, f"do_{method}", Handler._answer)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hung up is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def from_bucket(server: Elsewhere) -> None:
    options = S3Options(
        endpoint=server.uri, region="us-east-1", path_style=True, access_key_id="a", secret_access_key="secret of ours", attempts_max=1,
        connect_timeout_s=BOUND_S, request_timeout_s=BOUND_S, ca_file=str(server.authority),
    )  # fmt: skip
    S3ObjectStore(StorePlace("s3://bucket/p", options)).read("k")


def from_catalog(server: Elsewhere) -> None:
    tables = IcebergTables(
        "lake",
        {"type": "rest", "uri": server.uri, "ssl.cabundle": str(server.authority), "token": "t"},
        SeededIds(1),
        LIMITS,
    )
    tables.load(("shop", "orders"))


def from_token_server(server: Elsewhere) -> None:
    who = {
        "credential": "a:b",
        "oauth2-server-uri": f"{server.uri}/tokens",
        "ssl.cabundle": str(server.authority),
    }
    IcebergTables("lake", {"type": "rest", "uri": "http://127.0.0.1:1", **who}, SeededIds(1), LIMITS).load(
        ("shop", "orders")
    )


def from_registry(server: Elsewhere) -> None:
    settings = ConfluentSettings(
        url=server.uri, timeout=BOUND_S, attempts_max=1, tls=RegistryTlsSettings(ca=server.authority)
    )
    RegistryHttp(settings, SystemClock()).get("/subjects/a/versions", SystemClock().monotonic_s() + BOUND_S)


def to_collector(server: Elsewhere) -> None:
    from opentelemetry.sdk.metrics.export import MetricExportResult

    exporter = otlp._exporter(
        OtlpSettings(endpoint=server.uri, ca_file=server.authority, timeout=BOUND_S, interval=BOUND_S)
    )
    if (
        exporter.export(otlp.metrics_data((), {}, 0, 1), timeout_millis=1000 * BOUND_S)
        is not MetricExportResult.SUCCESS
    ):
        raise ConnectionError


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("ask", [from_bucket, from_catalog, from_token_server, from_registry, to_collector])
def test_a_certificate_for_another_machine_is_refused(
    elsewhere: Elsewhere, ask: Callable[[Elsewhere], None], request: pytest.FixtureRequest
) -> None:
    with pytest.raises((ArchiverError, OSError)):
        ask(elsewhere)
    if "this_machine" in request.node.callspec.id:
        assert elsewhere.asked, "with the right name it is asked, and says no"
    else:
        assert elsewhere.asked == []


@pytest.mark.parametrize("elsewhere", ["127.0.0.1"], ids=["this_machine"], indirect=True)
@pytest.mark.parametrize("value", [False, 0, "no", "", " "])
def test_no_property_of_a_catalog_switches_verification_off(elsewhere: Elsewhere, value: object) -> None:
    """The HTTP library takes an empty text, and false, as *verify no certificate*."""
    given = {"name": "lake", "type": "rest", "uri": elsewhere.uri, "ssl.cabundle": value}
    with pytest.raises((ArchiverError, OSError, ValidationError)):
        IcebergTables("lake", CatalogSettings.model_validate(given).properties(), SeededIds(1), LIMITS).load(
            ("shop", "orders")
        )
    assert elsewhere.asked == []
