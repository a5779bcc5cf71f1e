"""An old copy of the metadata database is put back: nothing is sequenced, for each kind of evidence of the
longer log."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.proto import intake_log_pb2 as pb
from tests.support.builders.deployment import Deployment, Done, check_present, jsonl, sample_records


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def cut_often(deployment: Deployment) -> None:
    deployment.overrides["log"] = {"append_backoff": "5ms", "checkpoint_entries": 2}
    deployment.write(deployment.document())


def put_back(deployment: Deployment, copy: Path) -> Path:
    """The copy takes the place of the newest database, which is kept elsewhere."""
    newest = deployment.root / "newest.db"
    (deployment.root / "metadata.db").rename(newest)
    shutil.copy(copy, deployment.root / "metadata.db")
    return newest


def copied(deployment: Deployment) -> Path:
    copy = deployment.root / "copy.db"
    shutil.copy(deployment.root / "metadata.db", copy)
    return copy


def check_refused(deployment: Deployment, *words: str) -> None:
    """Both commands that append refuse, and append nothing; what only reads goes on."""
    before = deployment.cli("status", "--output", "json").json()["intake_log"]
    for command in (["produce"], ["archive", "--all"]):
        done: Done = deployment.cli(*command, stdin=jsonl(sample_records(1)))
        assert done.code == 1, (done.code, done.out, done.err)
        for word in (*words, "put the newest one in place", "Nothing is sequenced"):
            assert word in done.err
        assert "Traceback" not in done.err
    assert deployment.cli("status", "--output", "json").json()["intake_log"] == before


def restore(deployment: Deployment, newest: Path) -> None:
    (deployment.root / "metadata.db").unlink()
    newest.rename(deployment.root / "metadata.db")


def test_files_that_the_log_does_not_name_report_it(deployment: Deployment) -> None:
    sent = sample_records(60)
    acknowledged = deployment.produce(sent)
    copy = copied(deployment)
    for first in (60, 66, 72):
        acknowledged += deployment.produce(sample_records(6, first=first))
    newest = put_back(deployment, copy)
    check_refused(deployment, "was written when the intake log had", "but it ends at")
    restore(deployment, newest)
    check_present(deployment, sample_records(78), acknowledged)


def test_one_lost_record_is_enough(deployment: Deployment) -> None:
    """No file of a later writer shows it; the tail marker next to the database does."""
    acknowledged = deployment.produce(sample_records(6))
    copy = copied(deployment)
    acknowledged += deployment.produce(sample_records(1, first=6))
    newest = put_back(deployment, copy)
    check_refused(deployment, "metadata.db.intake.tail says that it once had")
    restore(deployment, newest)
    check_present(deployment, sample_records(7), acknowledged)


def test_a_checkpoint_reports_it(deployment: Deployment) -> None:
    sent = sample_records(60)
    acknowledged = deployment.produce(sent)
    copy = copied(deployment)
    cut_often(deployment)
    before = set((deployment.data / "intake").rglob("*.parquet"))
    for first in (60, 66):
        acknowledged += deployment.produce(sample_records(6, first=first))
    hidden = {
        path: deployment.root / path.name
        for path in set((deployment.data / "intake").rglob("*.parquet")) - before
    }
    for path, elsewhere in hidden.items():
        path.rename(elsewhere)  # so that the files are no evidence
    newest = put_back(deployment, copy)
    check_refused(deployment, "checkpoint/intake/v1/", "was made when the intake log had")
    restore(deployment, newest)
    for path, elsewhere in hidden.items():
        elsewhere.rename(path)
    check_present(deployment, sample_records(72), acknowledged)


def test_a_copy_that_was_trimmed_in_between(deployment: Deployment) -> None:
    """The checkpoints that lead to where the copy begins were replaced and deleted: nothing can be read
    either."""
    cut_often(deployment)
    acknowledged = deployment.produce(sample_records(60))
    copy = copied(deployment)
    for first in range(60, 90, 6):
        acknowledged += deployment.produce(sample_records(6, first=first))
    checkpoints = sorted((deployment.data / "checkpoint/intake/v1").glob("*.bin"))
    for path in checkpoints[:-2]:
        path.unlink()
    newest = put_back(deployment, copy)
    for command in (["produce"], ["archive", "--all"], ["status"], ["audit"]):
        done = deployment.cli(*command, stdin=jsonl(sample_records(1)))
        assert done.code in (1, 2), (command, done.code, done.err)
        assert "restore a checkpoint of an entry from" in done.err + done.out
        assert "put the newest one in place" in done.err + done.out
    (deployment.root / "metadata.db.intake.tail").unlink()
    restore(deployment, newest)
    check_present(deployment, sample_records(90), acknowledged)


def test_a_copy_that_went_on_by_itself(deployment: Deployment) -> None:
    """An operator got around the check; the checkpoints are of entries that this log does not have."""
    cut_often(deployment)
    acknowledged = deployment.produce(sample_records(60))
    copy = copied(deployment)
    for first in range(60, 90, 6):
        acknowledged += deployment.produce(sample_records(6, first=first))
    newest = put_back(deployment, copy)
    (deployment.root / "metadata.db.intake.tail").unlink()
    logs = SqliteLogStore(deployment.root / "metadata.db", 30, 512 * 1024)
    log = logs.log("intake")
    for number in range(100):
        entry = pb.IntakeEntry(
            format=1, id=number.to_bytes(16, "big"), tick=pb.Tick(time_us=1_767_323_045_000_000 + number)
        )
        log.append(log.tail(), entry.SerializeToString())
    logs.close()
    done = deployment.cli("produce", stdin=jsonl(sample_records(1)))
    assert done.code == 1, (done.out, done.err)
    assert "was made of entries that the intake log does not have" in done.err
    (deployment.root / "metadata.db.intake.tail").unlink()
    restore(deployment, newest)
    check_present(deployment, sample_records(90), acknowledged)


@pytest.mark.parametrize("point", ["writer.upload.after", "writer.append.before"])
def test_an_unreferenced_file_of_a_killed_writer_stops_nothing(tmp_path: Path, point: str) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    acknowledged = deployment.produce(sample_records(60))
    for _ in range(3):
        killed = deployment.run("produce", stdin=jsonl(sample_records(6)), armed=f"{point}=kill")
        assert killed.code == -signal.SIGKILL, killed.err
    assert len(list((deployment.data / "intake").rglob("*.parquet"))) > 3
    acknowledged += deployment.produce(sample_records(6, first=60))
    check_present(deployment, sample_records(66), acknowledged)
