"""The drills of docs/operations/backup.md with real daemons under load, by the page's own commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.builders.deployment import check_present, jsonl, sample_records
from tests.support.builders.rebuilding import places_by_duckdb, rows_of
from tests.support.deploy.installation import OPERATIONS, section
from tests.support.deploy.standing_service import Load, Sent, Service, send
from tests.support.process.processes import alive, descendants, until
from tests.support.process.serving import Served

pytestmark = pytest.mark.timeout(580)
PAGE = OPERATIONS / "backup.md"
TOPICS = ("orders", "clicks", "files", "kept")
SPARK_PATIENCE_S = 240.0
Place = tuple[str, int, int]


def places(sent: Sent) -> set[Place]:
    return {(item["topic"], item["partition"], item["offset"]) for _, item in sent}


def check_there(service: Service, sent: Sent) -> set[Place]:
    """What was acknowledged is there once and as it was sent; all places that there are."""
    check_present(service, [record for record, _ in sent], [item for _, item in sent])
    return {
        (topic, record["partition"], record["offset"])
        for topic in TOPICS
        for record in service.consume(topic)
    }


def check_table(service: Service, topic: str) -> None:
    """The topic's table has each of its records once, for two readers."""
    wanted = sorted((record["partition"], record["offset"]) for record in service.consume(topic))
    assert sorted(rows_of(service, f"shop.{topic}")) == places_by_duckdb(service, f"shop.{topic}") == wanted


def archives(service: Service) -> int:
    return len(list(service.data.glob("archive/*/data/**/*.parquet")))


def until_archiving(service: Service, before: int = 0) -> None:
    """Wait for an archive more than there were: Spark has to start for it."""

    def holds() -> bool:
        assert service.daemon is not None
        assert service.daemon.running, service.daemon.log_text()
        return archives(service) > before

    until("something is archived", holds, SPARK_PATIENCE_S)


@pytest.mark.turns(2)
@pytest.mark.spark
@pytest.mark.slow
def test_everything_comes_back_from_a_backup_made_under_load(tmp_path: Path) -> None:
    stop_and_copy, (aside, put_back) = section("Backup", PAGE)[0], section("Restore", PAGE)
    with Service(tmp_path) as service:
        service.start()
        with Load(service) as load:
            until("some records are taken in", lambda: load.heard() > 60)
            until_archiving(service)
            *making, starting = stop_and_copy
            service.play(making)
            before = load.acknowledged()
            service.play([starting], "--roles", "intake")
            until("more records are taken in", lambda: load.heard() > len(before) + 60)
            service.kill()
            after = load.acknowledged()[len(before) :]
        shutil.rmtree(service.root)

        *restoring, starting = put_back
        assert "verdict: valid" in service.play(restoring)
        there, archived = check_there(service, before), archives(service)
        assert not there & places(after), "what came after the backup is gone"
        service.play([starting])
        assert service.daemon is not None
        again = send(service.daemon, sample_records(60, first=100_000))
        assert len(again) == 60
        assert not places(again) & there, "no offset of a record that is there is given again"
        assert places(again) & places(after), "offsets of what is gone are"
        there |= places(again)
        until_archiving(service, archived)
        service.daemon.until_archived("orders", sum(topic == "orders" for topic, _, _ in there))
        service.daemon.until_archived("clicks", sum(topic == "clicks" for topic, _, _ in there))
        service.stop()
        assert check_there(service, [*before, *again]) == there
        for topic in ("orders", "clicks"):
            check_table(service, topic)

        # The same folder with something left of it, and its catalog lost.
        (service.root / "catalog.db").unlink()
        *rebuilding, starting = section("The catalog alone", PAGE)[0]
        assert "verdict: valid" in service.play(rebuilding)
        for topic in ("orders", "clicks"):
            check_table(service, topic)
        service.play(aside)
        assert not service.root.exists()


def acknowledge(service: Service, count: int, first: int) -> Sent:
    """By a command, without a daemon."""
    records = sample_records(count, first)
    return list(zip(records, service.produce(records), strict=True))


def stopped_at_once(daemon: Served) -> list[int]:
    """Stop the daemon and all that it started, as a snapshot of its disk finds them."""
    stopped: list[int] = []
    while True:
        daemon.command.look()
        running = [
            pid for pid, _ in alive({process for process, _ in descendants(daemon.pid)}) if pid not in stopped
        ]
        if daemon.pid not in stopped:
            running.insert(0, daemon.pid)
        if not running:
            return stopped
        for pid in running:
            os.kill(pid, signal.SIGSTOP)
        stopped += running


@pytest.mark.turns(2)
@pytest.mark.spark
@pytest.mark.slow
def test_a_snapshot_of_a_running_service_is_a_backup(tmp_path: Path) -> None:
    """At three moments of a daemon that ingests and archives; each copy is whole, and goes on."""
    copies: list[tuple[Path, Sent]] = []
    with Service(tmp_path) as service:
        daemon = service.start()
        with Load(service) as load:
            until_archiving(service)
            for number in range(3):
                heard = load.heard()
                until("more is taken in", lambda: load.heard() > heard + 30)  # noqa: B023 - called at once
                stopped = stopped_at_once(daemon)
                sent = list(load._found)
                shutil.copytree(service.root, tmp_path / f"copy-{number}")
                copies.append((tmp_path / f"copy-{number}", sent))
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
            service.kill()
        for copy, sent in copies:
            shutil.rmtree(service.root)
            copy.rename(service.root)
            there = check_there(service, sent)
            more = acknowledge(service, 30, first=100_000)
            assert check_there(service, [*sent, *more]) == there | places(more)
            assert not there & places(more)
            audit = service.cli("audit", "--output", "json")
            assert (audit.code, audit.json()["verdict"]) == (0, "valid"), audit.out


def back_to(service: Service, moment_ns: int, later: Path) -> int:
    """Take away the objects that were created after a moment, as versions of a bucket allow; how many."""
    found = [
        path for path in service.data.rglob("*") if path.is_file() and path.stat().st_mtime_ns > moment_ns
    ]
    for path in found:
        (later / path.relative_to(service.data)).parent.mkdir(parents=True, exist_ok=True)
        path.rename(later / path.relative_to(service.data))
    return len(found)


def test_older_logs_are_refused_until_the_objects_are_of_their_moment(tmp_path: Path) -> None:
    (copying,) = section("The logs are older than the objects", PAGE)
    service = Service(tmp_path)
    before = acknowledge(service, 30, 0)
    service.play(copying[:-1])
    moment_ns = time.time_ns()
    assert (service.backups / "logs.moment").read_text().endswith("+00:00\n")
    after = [pair for first in (30, 36, 42) for pair in acknowledge(service, 6, first)]

    for path in service.root.glob("metadata.db*"):
        path.unlink()
    old = tmp_path / "old"
    old.mkdir()
    service.machine.shell(f"tar --extract --file logs.tar --directory {old}", cwd=service.backups)
    for path in old.glob("stream-archiver/metadata.db*"):
        shutil.copy(path, service.root / path.name)

    refused = service.cli("produce", stdin=jsonl(sample_records(6, 48)))
    assert refused.code == 1, (refused.out, refused.err)
    reported = re.search(
        r"was written when the intake log had ([0-9]+) entries, but it ends at ([0-9]+)", refused.err
    )
    assert reported is not None, refused.err
    assert "put the newest one in place. Nothing is sequenced or archived until then" in refused.err
    assert [service.cli(command).code for command in ("status", "audit")] == [0, 0], "what only reads goes on"
    assert len(service.consume("orders")) == sum(topic == "orders" for topic, _, _ in places(before))
    taken = back_to(service, moment_ns, tmp_path / "later")
    assert taken >= 3, "each later command has stored a file"
    assert 0 < int(reported[1]) - int(reported[2]) <= taken, "so many entries are missing at least"

    again = acknowledge(service, 6, 48)
    there = check_there(service, [*before, *again])
    assert there == places(before) | places(again)
    assert places(again) & places(after), "offsets of what is lost are given again"
    assert service.cli("audit").code == 0
