"""Checks that etcd settings are refused where they are unsafe, and otherwise parsed as intended."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.config.settings import Settings, load_settings
from archiver.runtime.errors import ConfigInvalid

TLS = "tls: {ca_file: ca.pem}"
ELSEWHERE = "addresses: ['etcd-0.example.com:2379']"


def loaded(folder: Path, etcd: str, more: str = "") -> Settings:
    for name in ("ca.pem", "cert.pem", "key.pem", "password"):
        (folder / name).write_text("hunter2\n")
    (folder / "archiver.yaml").write_text(
        f"cluster: demo\ndata: {{uri: data}}\nmetadata: {{etcd: {{{etcd}}}{more}}}\n"
    )
    return load_settings(folder / "archiver.yaml", {"SECRET": "hunter2"})


def test_the_least_there_is_to_say(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "addresses: ['127.0.0.1:2379', '[::1]:2379', 'localhost:2381']")
    etcd = settings.metadata.etcd
    assert etcd is not None and settings.metadata.sqlite is None
    assert (etcd.prefix, etcd.request_timeout, etcd.lease_ttl, etcd.tls, etcd.user) == (
        "/archiver",
        5.0,
        30.0,
        None,
        None,
    )
    assert settings.metadata.local_path == Path("/var/lib/stream-archiver/etcd")


def test_everything_there_is_to_say(tmp_path: Path) -> None:
    tls = "tls: {ca_file: ca.pem, cert_file: cert.pem, key_file: key.pem}"
    who = (
        "user: archiver, password: {file: password}, prefix: /a/b-1, state: state, request_timeout: 2s, "
        "lease_ttl: 10s"
    )
    settings = loaded(tmp_path, f"addresses: ['a:1', 'b:1'], {tls}, {who}")
    etcd = settings.metadata.etcd
    assert etcd is not None and etcd.tls is not None and etcd.password is not None
    assert (etcd.tls.ca_file, etcd.tls.cert_file, etcd.tls.key_file) == tuple(
        tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")
    )
    assert (etcd.user, etcd.password.get_secret_value(), etcd.prefix, etcd.lease_ttl) == (
        "archiver",
        "hunter2",
        "/a/b-1",
        10.0,
    )
    assert settings.metadata.local_path == tmp_path / "state" / "etcd"
    assert "hunter2" not in repr(settings)


def test_a_short_lease_needs_no_shorter_requests(tmp_path: Path) -> None:
    etcd = loaded(tmp_path, f"{ELSEWHERE}, {TLS}, lease_ttl: 5s").metadata.etcd
    assert etcd is not None
    assert (etcd.lease_ttl, etcd.request_timeout) == (5.0, 5.0)


@pytest.mark.parametrize(
    ("etcd", "key", "why"),
    [
        ("", "addresses", "missing"),
        ("addresses: []", "addresses", ""),
        ("addresses: ['http://127.0.0.1:2379']", "addresses[0]", "is not HOST:PORT"),
        ("addresses: ['127.0.0.1']", "addresses[0]", "is not HOST:PORT"),
        ("addresses: ['127.0.0.1:0']", "addresses[0]", "has no port"),
        ("addresses: ['127.0.0.1:1', '127.0.0.1:1']", "addresses[1]", "is listed twice"),
        (
            ELSEWHERE,
            "addresses[0]",
            "is another machine, and without tls others can read and change the logs on the way; give tls",
        ),
        ("addresses: ['127.0.0.1:1', '10.0.0.1:1']", "addresses[1]", "or set insecure: true"),
        (f"{ELSEWHERE}, tls: {{}}", "tls.ca_file", "missing"),
        (f"{ELSEWHERE}, tls: {{ca_file: gone.pem}}", "tls.ca_file", "there is no file"),
        (f"{ELSEWHERE}, tls: {{ca_file: ca.pem, cert_file: cert.pem}}", "tls.key_file", "belong together"),
        (f"{ELSEWHERE}, tls: {{ca_file: ca.pem, key_file: key.pem}}", "tls.cert_file", "belong together"),
        (f"{ELSEWHERE}, tls: {{ca_file: ca.pem, verify: false}}", "tls.verify", ""),
        (f"{ELSEWHERE}, {TLS}, user: a", "password", "belong together"),
        (f"{ELSEWHERE}, {TLS}, password: {{env: SECRET}}", "user", "belong together"),
        (f"{ELSEWHERE}, {TLS}, user: a, password: hunter2", "password", "write {env: NAME} or {file: PATH}"),
        (f"{ELSEWHERE}, {TLS}, prefix: archiver", "prefix", ""),
        (f"{ELSEWHERE}, {TLS}, prefix: /archiver/", "prefix", ""),
        (f"{ELSEWHERE}, {TLS}, prefix: /a//b", "prefix", ""),
        (f"{ELSEWHERE}, {TLS}, lease_ttl: 1s, request_timeout: 0.1s", "lease_ttl", ""),
        (f"{ELSEWHERE}, {TLS}, request_timeout: 2m, lease_ttl: 5m", "request_timeout", ""),
        (f"{ELSEWHERE}, {TLS}, insecure: maybe", "insecure", ""),
    ],
)
def test_what_is_refused(tmp_path: Path, etcd: str, key: str, why: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(tmp_path, etcd)
    message = str(caught.value)
    assert f"metadata.etcd.{key}: " in message
    assert why in message
    assert "hunter2" not in message


@pytest.mark.parametrize("more", [TLS, "insecure: true"])
def test_another_machine_with_tls_or_with_leave(tmp_path: Path, more: str) -> None:
    assert loaded(tmp_path, f"{ELSEWHERE}, {more}").metadata.etcd is not None


def test_two_stores_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="names two metadata stores, sqlite and etcd; keep one"):
        loaded(tmp_path, "addresses: ['127.0.0.1:1']", ", sqlite: {path: m.db}")
