"""What cannot be read for want of memory, files or a connection is no damage: it is tried again, and nobody is told to restore anything."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.errors import Corrupted, RetryLater
from archiver.jobs.refined import RefineJob, RefineTopic
from archiver.jobs.task import run_bundle
from archiver.objects.local import LocalObjectStore
from archiver.objects.place import StorePlace
from tests.support.deployment import Deployment
from tests.support.driver import Driver
from tests.support.intake_files import Intake, Row
from tests.support.orders import raw_schema
from tests.support.refining import CLUSTER, NOW, identify

LACKING = [
    pa.ArrowMemoryError("malloc of size 1 failed"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.ECONNRESET, "Connection reset by peer"),
]
DAMAGED = [pa.ArrowInvalid("Corrupt snappy compressed data"), OSError("Unexpected end of stream"), OSError(errno.EIO, "Input/output error")]


def failing(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


@pytest.fixture
def job(tmp_path: Path) -> RefineJob:
    identify(tmp_path / "data")
    intake = Intake(LocalObjectStore(tmp_path / "data"))
    topic = intake.topic("clicks", 1)
    intake.file({(topic, 0): [Row(NOW, b"x" * 1000)]})
    topics = {topic: RefineTopic(topic, "clicks", raw_schema(), "day")}
    return RefineJob(CLUSTER, StorePlace(f"file://{tmp_path}/data"), 1, topics, [tuple(intake.plans(topic, 0))])


@pytest.mark.parametrize("where", ["read_row_group", "read_metadata"])
@pytest.mark.parametrize("error", [*LACKING, *DAMAGED], ids=str)
def test_intake(job: RefineJob, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetFile if where == "read_row_group" else pq, where, failing(error))
        (result,) = run_bundle(job.descriptors()[0])
    assert result.error == ("retry" if error in LACKING else "corrupted"), result.why
    assert result.why is not None
    assert ("restore it from a copy" in result.why) == (error in DAMAGED)
    assert [one.error for one in run_bundle(job.descriptors()[0])] == [None]


@pytest.mark.parametrize("error", [LACKING[0], LACKING[1], DAMAGED[1]], ids=str)
def test_archives(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with Driver(Deployment(tmp_path / "d")) as driver:
        driver.send("files", [b"a", b"b"])
        driver.archive()
        topic = driver.application.sequencer.fold.topics_by_name["files"].topic_id
        with monkeypatch.context() as patched:
            patched.setattr(pq.ParquetFile, "iter_batches", failing(error))
            with pytest.raises(RetryLater if error in LACKING else Corrupted, match="cannot be read"):
                list(driver.application.stream().read(topic, 0))
        assert len(list(driver.application.stream().read(topic, 0))) == 2
