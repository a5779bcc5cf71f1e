"""The port over TLS: it is open to other machines only with TLS or by explicit configuration.

It renews certificates without a restart, and commands trust one certificate alone.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from archiver.config.daemon import HttpSettings, HttpTlsSettings
from archiver.config.settings import load_settings
from archiver.runtime.errors import ConfigInvalid, Halt
from archiver.web import listener
from archiver.web.app import create_app
from archiver.web.listener import Listener
from archiver.web.server import WebServer
from archiver.web.tls import client_context
from tests.support.builders.deployment import Deployment
from tests.support.log.etcd_certificates import Certificates, make_certificates
from tests.support.process.processes import until
from tests.support.process.web import PATIENCE_S, TOKEN, Daemon, read_all

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "tls")


def tls(made: Certificates, **more: Path) -> HttpTlsSettings:
    return HttpTlsSettings(cert_file=made.server, key_file=made.server_key, **more)


@pytest.fixture
def daemon(tmp_path: Path, certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d"), tls=tls(certificates)) as daemon:
        yield daemon


def believing(authority: Path) -> ssl.SSLContext:
    """A context as any client has it: it trusts an authority, and checks the name."""
    return ssl.create_default_context(cafile=authority)


def asked(address: tuple[str, int], context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> bytes:
    with (
        socket.create_connection(address, timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as client,
    ):
        client.sendall(HEALTH)
        return client.recv(12)


def is_let_in(
    address: tuple[str, int], context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> bool:
    """A refusal is an alert, or an end without one; in TLS 1.3 it comes after the client considers itself
    connected."""
    try:
        return asked(address, context, session) == b"HTTP/1.1 200"
    except OSError:
        return False


def listens(server: WebServer) -> bool:
    return server.address is not None


def point_at(daemon: Daemon, made: Certificates, **more: Path) -> None:
    """Let commands of the deployment find the daemon by this configuration."""
    (daemon.deployment.root / "token").write_text(TOKEN)
    files = {"cert_file": made.server, "key_file": made.server_key, **more}
    http = {
        "listen": "{}:{}".format(*daemon.address),
        "admin_token": {"file": "token"},
        "tls": {name: str(at) for name, at in files.items()},
    }
    daemon.deployment.write({**daemon.deployment.document(), "http": http})


@pytest.mark.parametrize(
    "listen",
    ["0.0.0.0:8787", "[::]:8787", "10.1.2.3:8787", "[fe80::1]:8787", "archiver.internal:8787", "0:8787"],
)
def test_nothing_is_open_to_others_in_the_clear_unless_configured(
    tmp_path: Path, certificates: Certificates, listen: str
) -> None:
    deployment = Deployment(tmp_path / "d")
    for http in ({"listen": listen}, {"listen": listen, "allow_http": False}):
        deployment.write({**deployment.document(), "http": http})
        with pytest.raises(
            ConfigInvalid,
            match=r"http\.listen: .* without encryption; give tls a certificate.* allow_http: true",
        ):
            load_settings(deployment.config, {})
    files = {"cert_file": str(certificates.server), "key_file": str(certificates.server_key)}
    for reported in ({"allow_http": True}, {"tls": files}):
        deployment.write({**deployment.document(), "http": {"listen": listen, **reported}})
        assert load_settings(deployment.config, {}).http.listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.8.8:1", "[::1]:0", "localhost:1", "LOCALHOST:1"])
def test_loopback_needs_no_leave(listen: str) -> None:
    assert HttpSettings(listen=listen).tls is None


def test_files_that_are_not_there_are_named(tmp_path: Path, certificates: Certificates) -> None:
    with pytest.raises(ValidationError, match=r"there is no file .*/nowhere"):
        HttpTlsSettings(cert_file=certificates.server, key_file=tmp_path / "nowhere")


def test_a_certificate_is_shown_and_nothing_is_said_in_the_clear(
    daemon: Daemon, certificates: Certificates, tmp_path: Path
) -> None:
    assert asked(daemon.address, believing(certificates.authority)) == b"HTTP/1.1 200"
    for stranger in (
        ssl.create_default_context(),
        believing(make_certificates(tmp_path / "other").authority),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(daemon.address, stranger)
    with daemon.raw() as client:
        client.sendall(HEALTH)
        assert b"HTTP" not in read_all(client)
    old = believing(certificates.authority)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        asked(daemon.address, old)


def test_records_and_administration_go_over_it(daemon: Daemon) -> None:
    assert daemon.send("clicks", b'{"value": null}').status == 200
    assert daemon.administer("audit").status == 200
    assert (
        daemon.send("clicks", b'{"value": null}', Host="localhost:1", Origin="https://localhost:2").status
        == 403
    )
    assert len(daemon.stored("clicks")) == 1


def test_a_renewed_certificate_is_shown_without_a_restart(
    daemon: Daemon, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renewed = make_certificates(tmp_path / "renewed")
    with pytest.raises(ssl.SSLCertVerificationError):
        asked(daemon.address, believing(renewed.authority))
    before = certificates.server_key.read_bytes()
    shutil.copy(renewed.server_key, certificates.server_key)  # The other half is still to come.
    assert asked(daemon.address, believing(certificates.authority)) == b"HTTP/1.1 200"
    assert "cannot be used" in caplog.text
    assert "keeps the earlier certificate" in caplog.text
    shutil.copy(renewed.server, certificates.server)
    assert asked(daemon.address, believing(renewed.authority)) == b"HTTP/1.1 200"
    with pytest.raises(ssl.SSLCertVerificationError):
        asked(daemon.address, believing(certificates.authority))
    certificates.server.unlink()
    assert asked(daemon.address, believing(renewed.authority)) == b"HTTP/1.1 200", (
        "while it is away the last one is shown"
    )
    assert before.decode().strip() not in caplog.text


def test_commands_ask_over_it(daemon: Daemon, certificates: Certificates) -> None:
    point_at(daemon, certificates)
    worked: list[str] = []
    daemon.operations.gate = lambda _: worked.append("clean")
    done = daemon.deployment.cli("clean")
    assert (done.code, worked) == (0, ["clean"]), done.err
    status = daemon.deployment.cli("status", "--output", "json").json()
    assert status["daemon"]["address"] == "{}:{}".format(*daemon.address), status["daemon"]


def test_commands_believe_no_other_certificate(
    daemon: Daemon, certificates: Certificates, tmp_path: Path
) -> None:
    """This includes a certificate that the same authority has signed, as it might for another machine."""
    asked_for: list[str] = []
    daemon.operations.gate = lambda _: asked_for.append("clean")
    twin = replace(certificates, server=certificates.client, server_key=certificates.client_key)
    for other in (make_certificates(tmp_path / "other"), twin):
        point_at(daemon, other)
        with daemon.application.leadership.turn():
            done = daemon.deployment.cli("clean")
        assert done.code == 2, done.err
        assert "does not show the certificate of http.tls" in done.err
    point_at(daemon, certificates)
    certificates.server.write_text("no certificate")
    done = daemon.deployment.cli("clean")
    assert "cannot be used: it is no certificate in PEM form" in done.err
    assert asked_for == []


def test_only_clients_with_a_certificate_are_let_in(tmp_path: Path, certificates: Certificates) -> None:
    stranger = make_certificates(tmp_path / "other")
    both = {"client_ca_file": certificates.authority}
    with Daemon(Deployment(tmp_path / "d"), tls=tls(certificates, **both)) as daemon:
        for shown in (None, stranger):
            context = believing(certificates.authority)
            if shown is not None:
                context.load_cert_chain(shown.client, shown.client_key)
            assert not is_let_in(daemon.address, context)
        context = believing(certificates.authority)
        context.load_cert_chain(certificates.client, certificates.client_key)
        assert is_let_in(daemon.address, context)
        point_at(daemon, certificates, **both)
        worked: list[str] = []
        daemon.operations.gate = lambda _: worked.append("clean")
        done = daemon.deployment.cli("clean")
        assert (done.code, worked) == (0, ["clean"]), done.err


def test_an_authority_that_was_taken_away_lets_no_one_in_again(
    tmp_path: Path, certificates: Certificates
) -> None:
    """A session from when the certificate was trusted does not help either: a resumed session shows no
    certificate."""
    authorities = tmp_path / "clients.pem"
    shutil.copy(certificates.authority, authorities)
    with Daemon(Deployment(tmp_path / "d"), tls=tls(certificates, client_ca_file=authorities)) as daemon:
        context = believing(certificates.authority)
        context.load_cert_chain(certificates.client, certificates.client_key)
        with (
            socket.create_connection(daemon.address, timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(HEALTH)
            assert client.recv(12) == b"HTTP/1.1 200"
            session = client.session
        shutil.copy(make_certificates(tmp_path / "other").authority, tmp_path / "new.pem")
        (tmp_path / "new.pem").replace(authorities)
        assert not is_let_in(daemon.address, context)
        assert not is_let_in(daemon.address, context, session)


def test_a_connection_that_rests_does_not_hold_up_the_end(daemon: Daemon, certificates: Certificates) -> None:
    server = WebServer(create_app(daemon.face), "127.0.0.1:0", 1.0, daemon.face.http.tls)
    server.start()
    assert server.address is not None
    resting = daemon.connection()
    resting.host, resting.port = server.address
    try:
        resting.request("GET", "/healthz")
        resting.getresponse().read()
        began = time.monotonic()
        server.stop(PATIENCE_S)
        assert time.monotonic() - began < 20
    finally:
        resting.close()


def is_ended(client: socket.socket, within_s: float = 0.0) -> bool:
    """Whether the server closes the connection in that time."""
    client.settimeout(within_s)
    try:
        return client.recv(1) == b""
    except (BlockingIOError, TimeoutError):
        return False
    except ConnectionError:
        return True


MOST = 20
SILENCES = [b"", b"\x16\x03\x01\x02\x00\x01"]
"""Nothing, and the beginning of a handshake."""


@pytest.mark.parametrize("said", SILENCES)
def test_a_client_that_does_not_shake_hands_counts(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(Listener, "connections_max", MOST)
    monkeypatch.setattr(listener, "HEAD_S", 10 * PATIENCE_S)
    context = believing(certificates.authority)
    with (
        Daemon(Deployment(tmp_path / "d"), tls=tls(certificates)) as daemon,
        contextlib.ExitStack() as open_until_the_end,
    ):

        def more(count: int) -> list[socket.socket]:
            clients = [
                open_until_the_end.enter_context(socket.create_connection(daemon.address, PATIENCE_S))
                for _ in range(count)
            ]
            for client in clients:
                with contextlib.suppress(ConnectionError):
                    client.sendall(said)
            return clients

        silent = more(MOST - 1)
        assert asked(daemon.address, context) == b"HTTP/1.1 200", "there is room for one more"
        until("a silent client has taken it", lambda: not is_ended(more(1)[0], within_s=0.3))
        beyond = more(10)
        until("what is too many is closed", lambda: all(map(is_ended, beyond)))
        assert not any(map(is_ended, silent))
        assert not is_let_in(daemon.address, context)
        silent[0].close()
        until("there is room again", lambda: is_let_in(daemon.address, context))


@pytest.mark.parametrize("said", SILENCES)
def test_a_handshake_that_does_not_come_to_its_end_is_not_waited_for(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Twice, because a connection that is gone and still counted shows only then."""
    monkeypatch.setattr(Listener, "connections_max", MOST)
    monkeypatch.setattr(listener, "HEAD_S", 0.5)
    with Daemon(Deployment(tmp_path / "d"), tls=tls(certificates)) as daemon:
        for _ in range(2):
            silent = [socket.create_connection(daemon.address, PATIENCE_S) for _ in range(MOST)]
            try:
                for client in silent:
                    with contextlib.suppress(ConnectionError):
                        client.sendall(said)
                for client in silent:
                    assert is_ended(client, within_s=PATIENCE_S)
                assert asked(daemon.address, believing(certificates.authority)) == b"HTTP/1.1 200"
            finally:
                for client in silent:
                    client.close()


def test_a_port_without_a_usable_certificate_is_tried_again(
    daemon: Daemon, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_certificates(tmp_path / "mixed")
    shutil.copy(files.server_key, tmp_path / "its.key")
    shutil.copy(certificates.server_key, files.server_key)
    server = WebServer(create_app(daemon.face), "127.0.0.1:0", 0.1, tls(files))
    server.start()
    try:
        assert not listens(server)
        assert "(http.tls) cannot be used" in caplog.text
        assert caplog.text.count("cannot listen") == 1
        shutil.copy(tmp_path / "its.key", files.server_key)
        until("it listens", lambda: listens(server))
        assert server.address is not None
        assert asked(server.address, believing(files.authority)) == b"HTTP/1.1 200"
    finally:
        server.stop(PATIENCE_S)


def test_a_key_with_a_passphrase_is_refused_and_no_one_is_asked(
    certificates: Certificates, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    command: list[Any] = [
        "openssl",
        "ec",
        "-aes256",
        "-passout",
        "pass:x",
        "-in",
        certificates.server_key,
        "-out",
        locked,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    given = HttpTlsSettings(
        cert_file=certificates.server, key_file=locked, client_ca_file=certificates.authority
    )
    with pytest.raises(Halt, match=r"locked\.key \(http\.tls\) cannot be used"):
        client_context(given)
