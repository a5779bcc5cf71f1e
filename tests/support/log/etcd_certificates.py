"""Certificates for a test server and its clients, signed by their own authority, made with the command
`openssl`."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "2"
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Certificates:
    """Files of one authority and what it has signed: a server on 127.0.0.1 and a client."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Certificates:
    """New ones; the server's is for `host`, an address."""
    folder.mkdir(parents=True, exist_ok=True)
    key, authority = folder / "ca.key", folder / "ca.pem"
    _openssl(
        "req",
        "-x509",
        *_new_key(key),
        "-days",
        DAYS,
        "-subj",
        "/CN=authority of the tests",
        "-out",
        str(authority),
    )
    made = Certificates(
        authority, *(folder / name for name in ("server.pem", "server.key", "client.pem", "client.key"))
    )
    # etcd connects to itself, so its certificate is a client's, too.
    _sign(
        made.server,
        made.server_key,
        f"subjectAltName=IP:{host}\nextendedKeyUsage=serverAuth,clientAuth\n",
        authority,
        key,
    )
    _sign(made.client, made.client_key, "extendedKeyUsage=clientAuth\n", authority, key)
    return made


def _sign(certificate: Path, key: Path, extensions: str, authority: Path, authority_key: Path) -> None:
    request, asked = certificate.with_suffix(".csr"), certificate.with_suffix(".ext")
    asked.write_text(extensions)
    # No common name: etcd would take a client's for the name of a user.
    _openssl("req", *_new_key(key), "-subj", "/O=tests", "-out", str(request))
    signed_by = ["-CA", str(authority), "-CAkey", str(authority_key), "-CAcreateserial"]
    _openssl(
        "x509",
        "-req",
        "-in",
        str(request),
        *signed_by,
        "-days",
        DAYS,
        "-extfile",
        str(asked),
        "-out",
        str(certificate),
    )


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
