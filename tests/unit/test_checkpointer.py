"""Making checkpoints and trimming: after any failure, and with other processes at work, no entry is lost and
all readers agree."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.log.lease import FileLease
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Entry
from archiver.objects.paths import history_key
from archiver.runtime import failpoints
from archiver.runtime.errors import Corrupted, Halt
from intake.log.checkpoint import Checkpoint, encode, superseded
from intake.log.checkpointer import CheckpointLoop
from tests.support.log.checkpointing import SPAN, Played, Scene, flipped
from tests.support.objects.faulty_objects import ObjectFault, Operation

POINTS = [name for name in failpoints.NAMES if name.startswith(("checkpoint.", "log.trim."))]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def filled(scene: Scene, files: int) -> Played:
    """A process that has declared a topic and stored this many files."""
    process = scene.process()
    process.fill(process.sequencer.declare_topic("a", 2).topic_id, files)
    scene.keep()
    return process


def test_nothing_is_due_before_the_span_is_full(scene: Scene) -> None:
    process = filled(scene, SPAN - 2)
    assert not process.checkpointer.run_if_due()
    assert process.checkpointer.run() == []
    assert scene.store.indexes() == []


def test_checkpoints_stand_where_the_log_says_and_the_log_is_trimmed(scene: Scene) -> None:
    process = filled(scene, 4 * SPAN + 3)
    assert process.checkpointer.run_if_due()
    assert scene.store.indexes() == [10, 20, 30, 40]
    assert [(one.start, one.end) for one in scene.store.load(40).history] == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
    ]
    assert scene.log.floor() == 29, "one entry more than what the older of the last two needs"
    assert process.sequencer.checkpoint_index == 40
    assert sum(len(state.segments) for state in process.sequencer.fold.state().partitions.values()) == 4
    scene.check(process.sequencer.backlog())
    assert not process.checkpointer.run_if_due()


def test_nothing_is_trimmed_by_checkpoints_of_another_log(scene: Scene, tmp_path: Path) -> None:
    """An older copy of a metadata store was restored next to checkpoints of its later state. The spans
    differ, so that no index occurs twice."""
    other = Scene(tmp_path / "other")
    other.seed = 900
    one = other.process(7)
    one.fill(one.sequencer.declare_topic("a", 2).topic_id, 4 * SPAN)
    one.checkpointer.run()
    process = filled(scene, 4 * SPAN + 3)
    for index in other.store.indexes()[-3:]:
        scene.objects.create(scene.store.key(index), other.objects.read(other.store.key(index)))
    with pytest.raises(Halt, match="is of another intake log"):
        process.checkpointer.run()
    assert scene.log.floor() == 0
    for index in other.store.indexes()[-3:]:
        scene.objects.delete(scene.store.key(index))
    process.checkpointer.run()
    assert scene.log.floor() == 29
    scene.check(process.sequencer.backlog())


def test_bytes_make_it_due_as_well(scene: Scene) -> None:
    process = filled(scene, 3)
    object.__setattr__(process.checkpointer._settings, "checkpoint_bytes", 2**10)
    topic_id = process.sequencer.fold.topics_by_name["a"].topic_id
    while not process.checkpointer.due:
        process.append(topic_id, key="intake/" + "k" * 200)
    read = sum(len(entry.data) for entry in scene.log.read(0))
    assert 2**10 <= read < 2**10 + 400
    scene.keep()
    assert process.checkpointer.run_if_due()
    assert scene.store.indexes() == [scene.log.tail()]


def test_a_fresh_process_reads_no_more_than_what_came_since(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(scene, 4 * SPAN + 3).checkpointer.run_if_due()
    reads: list[int] = []
    wrapped = scene.log.read

    def counted(start: int, limit: int = 1000) -> list[Entry]:
        reads.append(start)
        return wrapped(start, limit)

    monkeypatch.setattr(scene.log, "read", counted)
    fresh = scene.process()
    fresh.sequencer.refresh()
    assert reads == [39, 40], "the entry that proves the checkpoint, and what came since"
    scene.check(fresh.sequencer.backlog())


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("point", POINTS)
def test_stopped_at_any_step(scene: Scene, point: str, action: str, caplog: pytest.LogCaptureFixture) -> None:
    process = filled(scene, 2 * SPAN + 3)
    for time in (1, 2):
        failpoints.arm(f"{point}={action}@{time}")
        process.checkpointer.run_if_due()
        scene.check(scene.process().sequencer.backlog())
        scene.check(process.sequencer.backlog())
    failpoints.arm("")
    assert point in caplog.text
    process.checkpointer.run()
    assert scene.store.indexes() == [10, 20]
    assert scene.log.floor() == 9
    scene.check(scene.process().sequencer.backlog())


@pytest.mark.parametrize("fault", list(ObjectFault))
@pytest.mark.parametrize("operation", ["create", "read", "list", "info", "open_input", "read_range"])
def test_a_store_that_fails_at_any_call(scene: Scene, operation: Operation, fault: ObjectFault) -> None:
    process = filled(scene, 2 * SPAN + 3)
    for skip in range(30):
        scene.objects.fail(operation, fault, skip=skip)
        process.checkpointer.run_if_due()
        failed = scene.objects.heal_rules()
        floor = scene.log.floor()
        assert floor in (0, 9)
        scene.check(scene.process().sequencer.backlog())
        if not failed:
            break
    process.checkpointer.run()
    assert (scene.store.indexes(), scene.log.floor()) == ([10, 20], 9)
    scene.check(process.sequencer.backlog())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 15), st.sampled_from([None, *POINTS])),
        min_size=1,
        max_size=12,
    )
)
def test_several_processes_of_different_settings(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, str | None]]
) -> None:
    """They take turns, and each may be stopped in its turn. Each reader sees every record at any time."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    processes = [scene.process(entries) for entries in (7, 10, 10)]
    topic_id = processes[0].sequencer.declare_topic("a", 2).topic_id
    for number, files, point in steps:
        process = processes[number]
        process.sequencer.refresh()
        process.fill(topic_id, files)
        scene.keep()
        failpoints.arm(f"{point}=error" if point else "")
        process.checkpointer.run_if_due()
        failpoints.arm("")
        whole = scene.store.last()
        assert scene.log.floor() <= (whole[-1].index - 1 if len(whole) == 2 else 0)
        scene.check(process.sequencer.backlog())
    for process in [*processes, scene.process()]:
        scene.check(process.sequencer.backlog())


def test_two_at_once_are_harmless(tmp_path: Path) -> None:
    """Without the lease, on a real log: both make the same objects, while others append."""
    logs = SqliteLogStore(tmp_path / "metadata.db", 30, 512 * 1024)
    scene = Scene(tmp_path, logs.log("intake"))
    writer = filled(scene, 5 * SPAN)
    topic_id = writer.sequencer.fold.topics_by_name["a"].topic_id
    others = [scene.process() for _ in range(4)]
    for other in others:
        other.sequencer.refresh()
    errors: list[Exception] = []
    gate = threading.Barrier(len(others))

    def work(process: Played) -> None:
        try:
            for _ in range(6):
                gate.wait(30)
                process.checkpointer.run()
                process.sequencer.refresh()
        except Exception as error:  # noqa: BLE001 - the test reports every failure of the thread
            errors.append(error)
            gate.abort()

    threads = [threading.Thread(target=work, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for _ in range(60):
        writer.append(topic_id)
        scene.keep()
    for thread in threads:
        thread.join(60)
    assert not errors
    for process in [*others, writer, scene.process()]:
        scene.check(process.sequencer.backlog())
    logs.close()


def test_who_holds_the_lease_works_and_the_other_learns(scene: Scene, tmp_path: Path) -> None:
    one = scene.process(lease=FileLease(tmp_path / "lease", "one"))
    held = FileLease(tmp_path / "lease", "two")
    one.fill(one.sequencer.declare_topic("a", 2).topic_id, 2 * SPAN)
    scene.keep()
    held.acquire()
    assert not one.checkpointer.run_if_due()
    assert scene.store.indexes() == []
    assert filled_by(scene, SPAN) == [10, 20, 30]
    assert one.checkpointer.run_if_due(), "it learns of what the other has made"
    assert one.sequencer.checkpoint_index == 30
    held.release()
    scene.check(one.sequencer.backlog())


def filled_by(scene: Scene, files: int) -> list[int]:
    other = scene.process()
    other.sequencer.refresh()
    other.fill(other.sequencer.fold.topics_by_name["a"].topic_id, files)
    scene.keep()
    other.checkpointer.run()
    return scene.store.indexes()


def test_a_damaged_newest_checkpoint_costs_time_and_no_data(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    process = filled(scene, 4 * SPAN)
    process.checkpointer.run()
    scene.rewrite(scene.store.key(40), flipped)
    fresh = scene.process()
    scene.check(fresh.sequencer.backlog())
    assert fresh.sequencer.checkpoint_index == 30
    assert "an older checkpoint is used" in caplog.text
    with pytest.raises(Halt, match="if it is damaged, delete it, and it is made again"):
        fresh.checkpointer.run()
    scene.objects.delete(scene.store.key(40))
    fresh.checkpointer.run()
    assert scene.store.load(40).index == 40


def test_no_checkpoint_leads_to_where_the_log_begins(scene: Scene) -> None:
    process = filled(scene, 4 * SPAN)
    process.checkpointer.run()
    for index in (30, 40):
        scene.rewrite(scene.store.key(index), flipped)
    with pytest.raises(
        Halt, match=r"begins at entry 29 and ends at 41.*restore a checkpoint of an entry from 29 to 41"
    ):
        scene.process().sequencer.refresh()
    with pytest.raises(Halt, match="restore a checkpoint"):
        scene.process().sequencer.declare_topic("b", 1)
    assert scene.log.tail() == 41


def test_damaged_checkpoints_of_an_untrimmed_log_are_passed_over(scene: Scene) -> None:
    process = filled(scene, SPAN)
    process.checkpointer.run()
    scene.rewrite(scene.store.key(10), flipped)
    scene.check(scene.process().sequencer.backlog())


@pytest.mark.parametrize("key", ["shelf", "checkpoint"])
def test_the_log_is_not_trimmed_behind_something_damaged(scene: Scene, key: str) -> None:
    process = filled(scene, SPAN)
    process.checkpointer.run()
    name = history_key(0, 10) if key == "shelf" else scene.store.key(10)
    scene.rewrite(name, lambda data: data[:-1])
    process.fill(process.sequencer.fold.topics_by_name["a"].topic_id, SPAN)
    scene.keep()
    with pytest.raises((Corrupted, Halt)):
        process.checkpointer.run()
    assert scene.log.floor() == 0


def test_a_store_that_gives_back_something_else(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    process = filled(scene, 2 * SPAN)
    wrapped = scene.objects.read
    for part in ("shelf/", "checkpoint/"):
        monkeypatch.setattr(
            scene.objects,
            "read",
            lambda key, part=part: flipped(wrapped(key)) if key.startswith(part) else wrapped(key),
        )
        with pytest.raises((Corrupted, Halt)):
            process.checkpointer.run()
        assert scene.log.floor() == 0
    monkeypatch.undo()
    process.checkpointer.run()
    assert scene.log.floor() == 9
    scene.check(scene.process().sequencer.backlog())


def test_the_same_content_in_other_bytes_is_adopted(scene: Scene) -> None:
    """Another version of a library may encode the same history file in other bytes."""
    process = filled(scene, 2 * SPAN)
    failpoints.arm("checkpoint.shelf.after=error")
    process.checkpointer.run_if_due()
    failpoints.arm("")

    def rewritten(data: bytes) -> bytes:
        read = pq.ParquetFile(pa.BufferReader(data))
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, read.schema_arrow, compression="snappy") as writer:
            writer.add_key_value_metadata(
                {key.decode(): value.decode() for key, value in (read.metadata.metadata or {}).items()}
            )
            writer.write_table(read.read())
        return bytes(sink.getvalue().to_pybytes())

    scene.rewrite(history_key(0, 10), rewritten)
    process.checkpointer.run()
    assert scene.store.indexes() == [10, 20]
    scene.check(scene.process().sequencer.backlog())


@pytest.mark.parametrize("what", ["shelf", "checkpoint"])
def test_other_content_under_the_same_key_halts(scene: Scene, tmp_path: Path, what: str) -> None:
    other = Scene(tmp_path / "other")
    filled(other, 3 * SPAN + 5).checkpointer.run()
    process = filled(scene, 2 * SPAN)
    source = history_key(10, 20) if what == "shelf" else other.store.key(20)
    scene.objects.create(
        history_key(0, 10) if what == "shelf" else scene.store.key(10), other.objects.read(source)
    )
    with pytest.raises(Halt, match=r"does not match the intake log.*delete it, and it is made again"):
        process.checkpointer.run()
    assert scene.log.floor() == 0


def test_checkpoints_of_another_log_do_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(tmp_path)
    filled(scene, 3 * SPAN).checkpointer.run()
    strange = Scene(tmp_path / "strange")
    strange.seed, strange.objects = 100, scene.objects
    process = strange.process()
    process.fill(process.sequencer.declare_topic("elsewhere", 2).topic_id, 3 * SPAN)
    strange.keep()
    fresh = strange.process()
    assert list(fresh.sequencer.refresh().topics_by_name) == ["elsewhere"]
    assert "belongs to another log" in caplog.text


def test_what_is_not_needed_any_more(scene: Scene) -> None:
    process = filled(scene, 4 * SPAN)
    assert superseded(scene.objects) == []
    failpoints.arm("checkpoint.upload.before=error@3")
    process.checkpointer.run_if_due()
    failpoints.arm("")
    assert superseded(scene.objects) == [], "the shelf behind the newest checkpoint is in the making"
    process.checkpointer.run()
    assert superseded(scene.objects) == [scene.store.key(10), scene.store.key(20)]
    stray = history_key(10, 23)
    scene.objects.create(stray, b"of a process with other settings, killed before its checkpoint")
    assert stray in superseded(scene.objects)
    for key in superseded(scene.objects):
        scene.objects.delete(key)
    assert superseded(scene.objects) == []
    scene.check(scene.process().sequencer.backlog())


def test_a_checkpoint_beyond_the_log_stops_the_trimming(scene: Scene) -> None:
    process = filled(scene, 2 * SPAN)
    process.checkpointer.run()
    beyond = scene.store.load(20)
    object.__setattr__(beyond.state, "next_index", 500)
    scene.objects.create(scene.store.key(500), encode(Checkpoint(beyond.state, beyond.history)))
    with pytest.raises(Halt, match="beyond the end of the intake log"):
        process.checkpointer.run()
    assert scene.log.floor() == 9


def test_a_run_ends_after_so_many(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intake.log.checkpointer.CHECKPOINTS_PER_RUN_MAX", 3)
    process = filled(scene, 5 * SPAN)
    assert process.checkpointer.run_if_due()
    assert (scene.store.indexes(), scene.log.floor()) == ([10, 20, 30], 19)
    assert process.checkpointer.run_if_due(), "the rest is still due"
    assert (scene.store.indexes(), scene.log.floor()) == ([10, 20, 30, 40, 50], 39)
    assert not process.checkpointer.due
    scene.check(process.sequencer.backlog())


def test_a_view_has_everything_at_any_time(scene: Scene) -> None:
    """While one thread appends and another makes checkpoints, a third finds every offset once, before and
    after each move."""
    process = filled(scene, 3)
    topic_id = process.sequencer.fold.topics_by_name["a"].topic_id
    backlog = process.sequencer.backlog()
    done = threading.Event()
    looks: list[int] = []
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not done.is_set():
                for partition in (0, 1):
                    offset = 0
                    for segment in backlog.segments((topic_id, partition)):
                        assert segment.base == offset
                        offset = segment.end
                    looks.append(offset)
        except BaseException as error:  # noqa: BLE001 - the test reports every failure of the thread
            errors.append(error)

    reader = threading.Thread(target=look)
    loop = CheckpointLoop(process.checkpointer, interval_s=0.001)
    reader.start()
    for number in range(600):
        process.append(topic_id, partition=number % 2)
    done.set()
    reader.join(60)
    loop.close()
    assert not errors, errors
    assert process.sequencer.checkpoint_index >= 50
    assert len(looks) > 20
    assert backlog.fold is process.sequencer.fold


def test_who_only_reads_forgets_as_well(scene: Scene) -> None:
    reader, writer = scene.process(), filled(scene, 3 * SPAN)
    reader.sequencer.refresh()
    reader.checkpointer.learn()
    assert (reader.sequencer.checkpoint_index, scene.store.indexes()) == (0, [])
    writer.checkpointer.run()
    scene.objects.fail("list", ObjectFault.REFUSED)
    reader.checkpointer.learn()
    assert reader.sequencer.checkpoint_index == 0, "it could not list, and tries again"
    reader.checkpointer.learn()
    assert (reader.sequencer.checkpoint_index, reader.checkpointer.due) == (30, False)
    scene.check(reader.sequencer.backlog())


# the thread


def test_the_loop_makes_what_is_due_and_survives_errors(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    process = filled(scene, 2 * SPAN)
    scene.objects.fail("list", ObjectFault.REFUSED, times=2)
    made = threading.Event()
    wrapped = process.checkpointer.run_if_due

    def run_if_due() -> bool:
        done = wrapped()
        if done:
            made.set()
        return done

    process.checkpointer.run_if_due = run_if_due  # type: ignore[method-assign]
    loop = CheckpointLoop(process.checkpointer, interval_s=0.005)
    assert made.wait(30)
    loop.close()
    assert scene.store.indexes() == [10, 20]
    assert "no checkpoint of the intake log was made" in caplog.text


def test_closing_the_loop_makes_what_is_due(scene: Scene) -> None:
    process = filled(scene, 2 * SPAN)
    CheckpointLoop(process.checkpointer, interval_s=1000).close()
    assert scene.store.indexes() == [10, 20]


def test_an_error_no_one_expected_is_logged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = filled(scene, 2 * SPAN)
    monkeypatch.setattr(scene.objects, "list", lambda prefix: 1 / 0)
    with caplog.at_level(logging.ERROR):
        assert not process.checkpointer.run_if_due()
    assert "unexpected error" in caplog.text
