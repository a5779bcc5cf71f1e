"""What cannot be read for lack of memory, files or a connection is no damage: it is retried, and no operator
is asked to restore anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import INTAKE_PREFIX, parse_archive_key
from archiver.refine.archive_file import describe_archive
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import RefineJob
from archiver.rewrite.undecoded import DoubtedFile, undecoded_rows
from archiver.runtime.errors import Corrupted, Halt, RetryLater
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import arrow_schema
from archiver.stream.archives import FoundArchive, list_archives, read_footer
from archiver.stream.rebuild import Layout, check_records
from intake.log import history_file
from intake.read.reader import log_index_of
from reconcile.vacuum.clean import check_nothing_is_lost
from tests.support.builders.audited import CLUSTER, World
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.lacking import DAMAGED, LACKING, failing
from tests.support.builders.refining import NOW, job_of_rows
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order_schema


@pytest.fixture
def job(tmp_path: Path) -> RefineJob:
    return job_of_rows(Intake(LocalObjectStore(tmp_path / "data")), [Row(NOW, b"x" * 1000)])


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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("lacking"))
    made.archived()
    return made


def undecoded(world: World, found: FoundArchive) -> object:
    return list(
        undecoded_rows(
            world.store, DoubtedFile(found.key, found.key, found.size, parse_archive_key(found.key))
        )
    )


def records(world: World, found: FoundArchive) -> None:
    layout = Layout(arrow_schema(order_schema()), RecordCodec(order_schema()))
    with world.store.open_input(found.key) as source:
        check_records(source, found, CLUSTER, lambda *_: layout)


def part(world: World, _: FoundArchive) -> object:
    data = history_file.encode(history_file.decided(world.intake.fold))
    return history_file.decode(history_file.ref_of(0, world.intake.fold.next_index, data), data)


READERS: dict[str, tuple[object, str, Callable[[World, FoundArchive], object]]] = {
    "a footer": (pq, "read_metadata", lambda world, found: read_footer(world.store, found, CLUSTER)),
    "what a table is told": (
        pq,
        "read_metadata",
        lambda world, found: describe_archive(world.store, found, CLUSTER),
    ),
    "undecoded rows": (pq, "ParquetFile", undecoded),
    "records made anew": (pq.ParquetFile, "iter_batches", records),
    "a shelf's index": (pq, "read_metadata", part),
    "a shelf's rows": (pq.ParquetFile, "read_row_groups", part),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("error", [*LACKING, *DAMAGED], ids=str)
def test_readers(world: World, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    place, what, read = READERS[name]
    (found, *_) = list_archives(world.store, world.topic, 0)
    with monkeypatch.context() as patched:
        patched.setattr(place, what, failing(error))
        with pytest.raises(RetryLater if error in LACKING else Corrupted):
            read(world, found)
    read(world, found)


@pytest.mark.parametrize("error", [*LACKING, *DAMAGED], ids=str)
def test_how_far_a_log_was(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """An intake file that cannot be read now may be the one that proves a loss of entries: nothing is
    deleted."""
    with Driver(Deployment(tmp_path / "d")) as driver:
        driver.send("files", [b"a"])
        objects = driver.application.objects
    (key,) = (info.key for info in objects.list(INTAKE_PREFIX))
    assert (log_index_of(objects, key) or 0) > 0
    with pytest.raises(Halt, match="the metadata store is an older copy"):
        check_nothing_is_lost(objects, [key], 0)
    monkeypatch.setattr(pq, "read_metadata", failing(error))
    if error in LACKING:
        with pytest.raises(RetryLater, match=f"intake file {key} cannot be read now"):
            check_nothing_is_lost(objects, [key], 0)
    else:
        check_nothing_is_lost(objects, [key], 0)
