"""Does the SCRAM client of Kafka's Java library authenticate with us, and do we write a certificate's subject as
Java does?"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.kafka.acl import principal_of_certificate
from archiver.kafka.sasl import SCRAM_HASHES, SaslExchange, Users, derive_credentials
from archiver.runtime.errors import AuthenticationFailed
from archiver.runtime.ids import SystemIds
from archiver.spark.java import require_java
from tests.support.kafka.certificate_subjects import SUBJECTS, certificate, subject_of
from tests.support.servers.maven import compiled, jars, spark_jars

RELEASE = "4.3.1"
SOURCES = Path(__file__).parent / "sasl_judge"
PASSWORD = "pencil, and =paper ü"
NAMES = ("alice", "bob,the=builder", "søren")
IDS = SystemIds()
STORED = {
    mechanism: derive_credentials(mechanism, PASSWORD.encode(), IDS.random_bytes(16), 4096)
    for mechanism in SCRAM_HASHES
}
USERS = Users(dict.fromkeys(NAMES, STORED), b"k" * 32)

pytestmark = pytest.mark.timeout(240)


class Judge:
    """The Java program, which answers each line with one line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def ask(self, line: str) -> str:
        self._input.write(line + "\n")
        self._input.flush()
        return self._output.readline().strip()

    def authenticate(self, *fields: str) -> tuple[str, str | None]:
        """How the exchange ended for the client, and the principal."""
        exchange, principal = SaslExchange(fields[0], USERS, IDS), None
        said = self.ask("\t".join(fields))
        while said not in {"complete", "refused"}:
            assert said
            assert not said.startswith("error"), said
            try:
                answer, principal = exchange.step(base64.b64decode(said))
            except AuthenticationFailed:
                said = self.ask("refused")
            else:
                said = self.ask(base64.b64encode(answer).decode())
        return said, principal


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    needed = [*jars(f"org.apache.kafka:kafka-clients:{RELEASE}"), *spark_jars("slf4j-api")]
    classes = compiled(f"sasl-judge/{RELEASE}", SOURCES, needed)
    command = [str(require_java(os.environ).executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"]
    path = os.pathsep.join(map(str, (classes, *needed)))
    with subprocess.Popen(
        [*command, path, "SaslJudge"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        # The program ends with its input, which the context closes.
        yield Judge(process)


@pytest.mark.parametrize("mechanism", sorted(SCRAM_HASHES))
def test_scram_of_java(mechanism: str, judge: Judge) -> None:
    for name in NAMES:
        assert judge.authenticate(mechanism, name, PASSWORD) == ("complete", f"User:{name}")
    assert judge.authenticate(mechanism, "alice", "wrong") == ("refused", None)
    assert judge.authenticate(mechanism, "mallory", PASSWORD) == ("refused", None)
    # A delegation token, which we do not have, is no user.
    assert judge.authenticate(mechanism, "alice", PASSWORD, "token") == ("refused", None)


def test_subjects_of_certificates(judge: Judge) -> None:
    for subject, expected in SUBJECTS:
        java = base64.b64decode(judge.ask(f"subject\t{subject_of(*subject).hex()}")).decode()
        assert java == expected
        assert principal_of_certificate(certificate(*subject)) == f"User:{java}"
