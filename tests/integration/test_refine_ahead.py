"""A refinement task that continues while its archives are stored and its intake is read: how many at a time,
with which results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import parse_archive_key
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.task import PlanResult, RefineOptions, TaskDescriptor
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from tests.support.builders.refining import DAY, NOW, task_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.process.processes import until

PATIENCE_S = 120.0
PARTITIONS = 6


class Watched:
    """A store that records creates under way, and runs a function of the test before the create of an
    archive."""

    def __init__(self, store: LocalObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.under_way = 0
        self.most = 0
        self.threads: set[int] = set()
        self.begun: list[str] = []
        self.created: list[str] = []
        self.before: Callable[[str], object] = lambda _: None
        """Called with a key before its create."""
        self.opening = 0
        self.before_opening: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create_from_file(self, key: str, path: Path) -> None:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.threads.add(threading.get_ident())
            self.begun.append(key)
        try:
            self.before(key)
            self._store.create_from_file(key, path)
            self.created.append(key)
        finally:
            with self._lock:
                self.under_way -= 1

    def open_input(self, key: str) -> pa.NativeFile:
        with self._lock:
            self.opening += 1
        try:
            self.before_opening()
            return self._store.open_input(key)
        finally:
            with self._lock:
                self.opening -= 1


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(LocalObjectStore(tmp_path / "data"))


def task_with(store: Watched, options: RefineOptions) -> TaskDescriptor:
    """A plan for each of the partitions."""
    intake = Intake(store)
    topic = intake.topic("raw", PARTITIONS)
    intake.file({(topic, partition): [Row(NOW)] * (partition + 1) for partition in range(PARTITIONS)})
    return task_of(
        intake, [plan for one in range(PARTITIONS) for plan in intake.plans(topic, one)], options=options
    )


def run(task: TaskDescriptor, store: Any) -> dict[int, PlanResult]:
    """Results by partition, exactly one for each."""
    found = list(run_bundle(task, store))
    assert sorted(result.partition for result in found) == list(range(PARTITIONS))
    return {result.partition: result for result in found}


def spooled(store: Any) -> list[Path]:
    return list(store.spool_dir().iterdir())


@pytest.mark.parametrize("most", [1, 2, 4])
def test_as_many_archives_are_stored_at_a_time_as_the_options_say(store: Watched, most: int) -> None:
    task = task_with(store, RefineOptions(uploads_max=most))
    together = threading.Barrier(most)
    waited: list[int] = []

    def before(_: str) -> None:
        if len(waited) < most:
            waited.append(threading.get_ident())
            together.wait(PATIENCE_S)  # breaks unless so many are there at the same time
        time.sleep(0.01)  # one more than allowed would be seen

    store.before = before
    found = run(task, store)
    assert [result.error for result in found.values()] == [None] * PARTITIONS
    assert [sum(file.archive.rows for file in found[partition].files) for partition in range(PARTITIONS)] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert store.most == most
    assert threading.get_ident() not in store.threads
    assert sorted(store.created) == sorted(info.key for info in store.list("archive/"))
    assert spooled(store) == []


def test_no_more_archives_wait_for_their_upload_than_are_under_way(store: Watched) -> None:
    """Otherwise a quick task fills the disk of its spool while a bucket is slow."""
    task = task_with(store, RefineOptions(uploads_max=2))
    gate = threading.Event()
    store.before = lambda _: gate.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, task, store)
        try:
            until("three archives are complete", lambda: len(spooled(store)) >= 3, PATIENCE_S)
            time.sleep(0.2)  # one more would be seen
            assert len(spooled(store)) == 3, (
                "two are under way, and the task waits for the first with one more in its hands"
            )
        finally:
            gate.set()
        assert [result.error for result in running.result(PATIENCE_S).values()] == [None] * PARTITIONS


def test_without_parallel_uploads_each_archive_is_stored_by_the_task_itself(store: Watched) -> None:
    found = run(task_with(store, RefineOptions(uploads_max=0)), store)
    assert [result.error for result in found.values()] == [None] * PARTITIONS
    assert (store.most, store.threads) == (1, {threading.get_ident()})


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RetryLater("the bucket is away"), "retry"),
        (OutcomeUnknown("no answer"), "retry"),  # nothing must be visible under the key
        (Halt("the bucket is read-only"), "failed"),
        (MemoryError("no memory"), "retry"),
        (ValueError("a defect"), "failed"),
    ],
)
def test_an_upload_that_fails_concerns_its_own_plan(
    store: Watched, error: Exception, kind: str, most: int
) -> None:
    task = task_with(store, RefineOptions(uploads_max=most))

    def before(key: str) -> None:
        if _partition(key) in (2, 5):
            raise error

    store.before = before
    found = run(task, store)
    assert {partition: result.error for partition, result in found.items()} == {
        0: None,
        1: None,
        2: kind,
        3: None,
        4: None,
        5: kind,
    }
    assert str(error) in (found[2].why or "") or kind == "retry"
    assert sorted(map(_partition, store.created)) == [0, 1, 3, 4]
    assert spooled(store) == []
    store.before = lambda _: None
    assert [result.error for result in run(task, store).values()] == [None] * PARTITIONS
    assert sorted(map(_partition, store.created)) == list(range(PARTITIONS)), (
        "what was stored is met and adopted"
    )


def test_another_archive_under_the_key_of_one_is_a_conflict_of_that_one(store: Watched) -> None:
    task = task_with(store, RefineOptions(uploads_max=2))
    (taken,) = [file.archive.key for file in run(task, store)[3].files]
    for info in list(store.list("archive/")):
        store.delete(info.key)
    store.create(taken, b"something else")
    found = run(task, store)
    assert [result.error for result in found.values()] == [None, None, None, "conflict", None, None]
    assert taken in (found[3].why or "")
    assert store.read(taken) == b"something else"
    assert spooled(store) == []


def test_a_file_of_a_plan_is_begun_when_the_one_before_it_is_stored(store: Watched) -> None:
    """So nothing is stored after a conflict, which only the answer shows."""
    intake = Intake(store)
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW + day * DAY) for day in range(4)]})
    store.before = lambda _: time.sleep(0.05)
    (result,) = run_bundle(task_of(intake, intake.plans(topic), options=RefineOptions(uploads_max=4)), store)
    assert store.most == 1
    assert [file.archive.key for file in result.files] == store.created
    assert [file.archive.base for file in result.files] == [0, 1, 2, 3]


def test_who_stops_asking_waits_for_what_is_under_way(store: Watched) -> None:
    """Otherwise a worker would continue to store for a task that is over."""
    task = task_with(store, RefineOptions(uploads_max=3))
    gate, begun = threading.Event(), threading.Event()

    def before(key: str) -> object:
        if _partition(key) == 0:
            # Else its result may come before another upload begins.
            return begun.wait(PATIENCE_S)
        begun.set()
        return gate.wait(PATIENCE_S)

    store.before = before
    results = cast("Generator[PlanResult]", run_bundle(task, store))
    assert next(results).partition == 0
    try:
        until("there is something to wait for", lambda: store.under_way > 0, PATIENCE_S)
    finally:
        threading.Timer(0.2, gate.set).start()
    results.close()
    assert store.under_way == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("archive-upload")]
    assert sorted(store.created) == sorted(info.key for info in store.list("archive/"))
    assert spooled(store) == []


def test_who_stops_asking_waits_for_what_is_being_read(store: Watched) -> None:
    intake = Intake(store)
    topic = intake.topic("raw", 2)
    for number in range(5):
        intake.file({(topic, int(number > 1)): [Row(NOW)]})
    gate, own = threading.Event(), threading.get_ident()
    store.before_opening = lambda: threading.get_ident() == own or gate.wait(PATIENCE_S)
    plans = [*intake.plans(topic, 0), *intake.plans(topic, 1)]
    results = cast(
        "Generator[PlanResult]",
        run_bundle(task_of(intake, plans, options=RefineOptions(uploads_max=0, reads_max=2)), store),
    )
    # The first file gives the size of the others, the second ends a plan: by then the next two are being
    # read.
    first = next(results)
    assert (first.partition, first.error) == (0, None)
    until("there is something to wait for", lambda: store.opening == 2, PATIENCE_S)
    threading.Timer(0.2, gate.set).start()
    results.close()
    assert store.opening == 0


@pytest.mark.parametrize("started", [0, 1])
def test_a_machine_without_a_thread_to_spare_stores_in_the_task_itself(
    store: Watched, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_with(store, RefineOptions(uploads_max=2))
    real, begun = threading.Thread.start, list[str]()

    def start(self: threading.Thread) -> None:
        if self.name.startswith("archive-upload"):
            if len(begun) >= started:
                raise RuntimeError("can't start new thread")
            begun.append(self.name)
        real(self)

    store.before = lambda _: time.sleep(0.02)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        found = run(task, store)
    assert [result.error for result in found.values()] == [None] * PARTITIONS
    assert sorted(map(_partition, store.begun)) == list(range(PARTITIONS)), "each once"
    assert threading.get_ident() in store.threads
    assert spooled(store) == []


def test_what_ends_a_process_comes_through(store: Watched) -> None:
    """A thread that ended silently would leave the task waiting."""
    task = task_with(store, RefineOptions(uploads_max=2))

    def before(_: str) -> None:
        raise SystemExit(3)

    store.before = before
    with pytest.raises(SystemExit):
        list(run_bundle(task, store))


def test_a_task_gets_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "archiver.yaml"
    least = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"
    path.write_text(
        least + "archive: {uploads_max: 7, reads_max: 6, open_writers_max: 5}\n", encoding="utf-8"
    )
    options = Application(load_settings(path, {}), {}).refine_options()
    assert (options.uploads_max, options.reads_max, options.open_writers_max) == (7, 6, 5)


@pytest.mark.parametrize(
    ("uri", "given", "expected"),
    [
        ("data", "", 0),
        ("s3://bucket/data", "", 4),
        ("data", "reads_max: 3", 3),
        ("s3://bucket/data", "reads_max: 0", 0),
    ],
)
def test_intake_is_read_ahead_where_a_bucket_keeps_one_waiting(
    uri: str, given: str, expected: int, tmp_path: Path
) -> None:
    path = tmp_path / "archiver.yaml"
    least = f"cluster: demo\ndata: {{uri: '{uri}'}}\nmetadata: {{sqlite: {{path: metadata.db}}}}\n"
    path.write_text(least + f"archive: {{{given}}}\n", encoding="utf-8")
    application: Any = SimpleNamespace(
        settings=load_settings(path, {}), environ={}
    )  # a whole application would ask the bucket for its owner
    assert Application.refine_options(application).reads_max == expected


@pytest.mark.parametrize(("given", "threads"), [(0, False), (2, True)])
def test_a_task_reads_ahead_as_configured(store: Watched, given: int, threads: bool) -> None:
    read_by: set[int] = set()
    store.before_opening = lambda: read_by.add(threading.get_ident())
    intake = Intake(store)
    topic = intake.topic("raw", 1)
    for _ in range(4):
        intake.file({(topic, 0): [Row(NOW)]})
    (result,) = run_bundle(
        task_of(intake, intake.plans(topic), options=RefineOptions(reads_max=given), ahead=False), store
    )
    assert result.error is None
    assert (read_by != {threading.get_ident()}) is threads


def _partition(key: str) -> int:
    parsed = parse_archive_key(key)
    assert parsed is not None, key
    return parsed.partition
