"""What an older version does with what a newer one has stored: it stops and says so, and nothing is damaged
by the attempt.

A version of the future is played by format numbers that this one does not know. The message is the same that
the older one has, because every reader stops at a number that it does not know.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from archiver.ledger.entries import FORMATS
from archiver.log.sqlite import SqliteLogStore
from archiver.proto import control_log_pb2, intake_log_pb2, intake_state_pb2
from intake.log.checkpoint import MAGIC, STATE_FORMATS
from intake.log.entries import ENTRY_FORMATS
from tests.support.builders.deployment import Deployment, jsonl, sample_records
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

NOW_US = 1_767_323_045_000_000
NEWER = (b"\x07" * 16).hex()
DIGEST_BYTES = 32
RECORDS, RECORD = "/v1/topics/clicks/records", b'{"partition": 0, "value": "AAAA"}\n'
Spoil = Callable[[Deployment], None]


def append(deployment: Deployment, name: str, data: bytes) -> None:
    """One more entry, as a newer version puts it there."""
    logs = SqliteLogStore(deployment.root / "metadata.db", 30, 512 * 1024)
    log = logs.log(name)
    log.append(log.tail(), data)
    logs.close()


def intake_entry(deployment: Deployment) -> None:
    tick = intake_log_pb2.Tick(time_us=NOW_US)
    entry = intake_log_pb2.IntakeEntry(format=ENTRY_FORMATS[-1] + 1, id=bytes.fromhex(NEWER), tick=tick)
    append(deployment, "intake", entry.SerializeToString())


def control_entry(deployment: Deployment) -> None:
    entry = control_log_pb2.ControlEntry(
        format=FORMATS[-1] + 1, id=bytes.fromhex(NEWER), epoch=1, owner="newer:1", time_us=NOW_US
    )
    entry.epoch_started.SetInParent()
    append(deployment, "control", entry.SerializeToString())


def checkpoint(deployment: Deployment) -> None:
    path = max((deployment.data / "checkpoint/intake/v1").glob("*.bin"))
    state = intake_state_pb2.IntakeState.FromString(path.read_bytes()[len(MAGIC) + DIGEST_BYTES :])
    state.format = STATE_FORMATS[-1] + 1
    payload = state.SerializeToString(deterministic=True)
    path.chmod(0o644)
    path.write_bytes(MAGIC + hashlib.sha256(payload).digest() + payload)


def cluster(deployment: Deployment) -> None:
    path = deployment.data / "cluster.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    path.chmod(0o644)
    path.write_text(json.dumps(document | {"format": 2}), encoding="utf-8")


def database(deployment: Deployment) -> None:
    connection = sqlite3.connect(deployment.root / "metadata.db")
    connection.execute("pragma user_version = 2")
    connection.close()


CASES: dict[str, tuple[Spoil, tuple[str, ...], str]] = {
    "intake entry": (
        intake_entry,
        ("produce", "consume", "archive", "audit", "status"),
        f"has the format {ENTRY_FORMATS[-1] + 1}",
    ),
    "control entry": (
        control_entry,
        ("consume", "archive", "audit", "reconcile"),
        f"has format {FORMATS[-1] + 1}",
    ),
    "checkpoint": (
        checkpoint,
        ("produce", "consume", "archive", "audit"),
        f"has the format {STATE_FORMATS[-1] + 1}",
    ),
    "cluster.json": (
        cluster,
        ("produce", "consume", "archive", "audit", "status"),
        "has format 2, this version reads 1",
    ),
    "database": (
        database,
        ("produce", "consume", "archive", "audit", "status"),
        "has format 2, this version reads format 1",
    ),
}
"""What is newer; which commands read it; what they say."""
ARGUMENTS = {"consume": ("--topic", "orders"), "archive": ("--all",)}


def entries(deployment: Deployment) -> list[str]:
    """What the logs hold; the database's files change with every look."""
    connection = sqlite3.connect(deployment.root / "metadata.db")
    found = [
        repr(row)
        for table in ("logs", "log_intake", "log_control")
        for row in connection.execute(f"SELECT * FROM {table}")
    ]
    connection.close()
    return found


def objects(deployment: Deployment) -> dict[str, str]:
    """By path, a digest of everything in the data folder."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in deployment.data.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("what", CASES)
def test_what_a_newer_version_wrote_is_refused_and_left_alone(what: str, tmp_path: Path) -> None:
    spoil, commands, message = CASES[what]
    deployment = Deployment(
        tmp_path / "d", overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 2}}
    )
    for first in range(0, 30, 6):
        deployment.produce(sample_records(6, first))
    spoil(deployment)
    before = entries(deployment), objects(deployment)
    for command in commands:
        done = deployment.cli(command, *ARGUMENTS.get(command, ()), stdin=jsonl(sample_records(1)))
        assert done.code in (1, 2, 3), (command, done.code, done.out, done.err)
        assert message in done.out + done.err, (command, done.out, done.err)
        assert "Traceback" not in done.err
    assert (entries(deployment), objects(deployment)) == before


@pytest.mark.parametrize(("what", "takes_records"), [("intake entry", False), ("control entry", True)])
def test_a_daemon_that_meets_a_newer_entry_lives(what: str, takes_records: bool, tmp_path: Path) -> None:
    """A rolling upgrade in which somebody used what is new too early: of the ledger, writers need nothing."""
    spoil, _, message = CASES[what]
    deployment = Deployment(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        assert daemon.post(RECORDS, RECORD).lines()[0]["offset"] == 0
        spoil(deployment)
        before = entries(deployment)
        answer = daemon.post(RECORDS, RECORD)
        daemon.until_logged(message)
        if takes_records:
            assert (answer.status, answer.lines()[0]["offset"]) == (200, 1), answer
        else:
            assert (answer.status, answer.lines()[0]["outcome"]) == (503, "failed"), answer
            assert message in answer.lines()[0]["error"]
            until("it is not ready", lambda: not daemon.ready())
            assert entries(deployment) == before
        assert daemon.ready() is takes_records
        assert daemon.get("/healthz").status == 200
        assert daemon.stop() == 0
        assert not daemon.logged("Traceback"), daemon.log_text()
