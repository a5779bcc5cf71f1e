"""Which objects prove that the log was longer before, and which do not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.paths import archive_key, intake_key
from archiver.proto.control_log_pb2 import ControlEntry
from archiver.publish.log_rollback_check import check_log_is_newest
from archiver.runtime.errors import Halt
from intake.producers import Stamp
from tests.support.log.checkpointing import NOW_US, Scene
from tests.support.log.memory_log import MemoryLogStore
from tests.support.objects.faulty_objects import ObjectFault

HOUR_US = 3_600_000_000
ULID = "01KE1A2B3C4D5E6F7G8H9JKM"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    process = made.process(entries=1000)
    process.fill(process.sequencer.declare_topic("a", 2).topic_id, 9)
    return made


def stray(scene: Scene, written_us: int, log_index: int | None, number: int = 0) -> str:
    """An intake file that no entry names."""
    key = intake_key(written_us, f"{ULID}{number:02}")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([pa.field("key", pa.binary())])) as writer:
        if log_index is not None:
            writer.add_key_value_metadata({"archiver.log_index": str(log_index)})
    scene.objects.create(key, sink.getvalue().to_pybytes())
    return key


def check(scene: Scene, now_us: int = NOW_US, epoch: int = 1) -> None:
    control = MemoryLogStore(4096).log("control")
    for number in range(epoch):
        control.append(number, ControlEntry(format=1, epoch=number + 1).SerializeToString())
    check_log_is_newest(scene.objects, scene.log, control, scene.process().sequencer.refresh, now_us)


def refused(scene: Scene, why: str, now_us: int = NOW_US, epoch: int = 1) -> None:
    with pytest.raises(Halt, match=why) as caught:
        check(scene, now_us, epoch)
    assert "put the newest one in place. Nothing is sequenced" in str(caught.value)


def test_a_whole_deployment_passes(scene: Scene) -> None:
    check(scene)
    scene.keep()
    process = scene.process(entries=4)
    process.sequencer.refresh()
    process.checkpointer.run()
    assert scene.log.floor() > 0
    check(scene)


@pytest.mark.parametrize("log_index", [0, 9, 10, None])
def test_an_unreferenced_file_whose_writer_had_read_no_further_is_no_proof(
    scene: Scene, log_index: int | None
) -> None:
    for number in range(40):
        stray(scene, NOW_US + 1_000_000 * number, log_index, number)
    check(scene)


@pytest.mark.parametrize("hours", [0, 1, 23, 2000, 4000, 4001])
def test_one_file_that_knows_of_more_is_proof(scene: Scene, hours: int) -> None:
    """It is in the hours after the newest file that the log names, or in the last hours."""
    for number in range(20):
        stray(scene, NOW_US + 1_000_000 + number, 10, number)
    key = stray(scene, NOW_US + 2_000_000 + hours * HOUR_US, 11)
    now_us = NOW_US + max(hours, 4000) * HOUR_US
    if hours == 2000:
        check(scene, now_us)  # It is too far from either end to be listed.
    else:
        refused(scene, f"{key} was written when the intake log had 11 entries, but it ends at 10", now_us)


def test_a_file_of_a_clock_that_is_behind_is_looked_at_too(scene: Scene) -> None:
    stray(scene, NOW_US - 300_000_000, 500)
    refused(scene, "written when the intake log had 500 entries")


def test_how_much_is_looked_at_is_bounded(scene: Scene) -> None:
    for number in range(99):
        stray(scene, NOW_US + 1_000_000 + number * 1000, 10, number)
    scene.objects.calls.clear()
    check(scene, NOW_US + 9000 * HOUR_US)
    opened = [key for operation, key in scene.objects.calls if operation == "open_input"]
    listed = [
        key for operation, key in scene.objects.calls if operation == "list" and key.startswith("intake/")
    ]
    assert (len(opened), len(listed)) == (64, 5), listed


def test_a_file_that_cannot_be_read_is_no_proof(scene: Scene) -> None:
    scene.objects.create(intake_key(NOW_US + 1_000_000, f"{ULID}00"), b"not Parquet")
    scene.objects.create(intake_key(NOW_US + 1_000_000, f"{ULID}01"), b"")
    scene.objects.fail("open_input", ObjectFault.HALTED, skip=2)
    check(scene)


def test_what_happens_in_between_is_no_proof(scene: Scene) -> None:
    """Other processes append, archive and write a checkpoint while the folder is listed."""
    other = scene.process(entries=2)
    topic_id = other.sequencer.refresh().topics_by_name["a"].topic_id
    wrapped = scene.objects.list

    def busy(prefix: str) -> object:
        if prefix.startswith("checkpoint/"):
            return wrapped(prefix)
        other.fill(topic_id, 4)
        other.checkpointer.run_if_due()
        end = other.sequencer.fold.next_offset((topic_id, 0))
        scene.objects.create(archive_key(topic_id, 0, "day", 20_000, end - 1, end, 1), b"")
        stray(scene, NOW_US + 50_000_000 + 1000 * scene.files, other.sequencer.fold.next_index)
        return wrapped(prefix)

    scene.objects.list = busy  # type: ignore[method-assign,assignment]
    check(scene)


def test_archives_beyond_the_log(scene: Scene) -> None:
    topic_id = scene.process().sequencer.refresh().topics_by_name["a"].topic_id
    ends_at = scene.process().sequencer.refresh().next_offset((topic_id, 1))
    scene.objects.create(archive_key(topic_id, 1, "day", 20_000, 0, ends_at, 1), b"")
    check(scene)
    scene.objects.create(archive_key(topic_id, 1, "day", 20_000, ends_at, ends_at + 1, 1), b"")
    refused(
        scene, f"reaches to offset {ends_at + 1} of topic a, but by the intake log nothing from {ends_at} on"
    )


def test_archives_of_what_was_not_stable(scene: Scene) -> None:
    """The copy was made before a transaction was committed; its records were archived later."""
    process = scene.process()
    topic_id = process.sequencer.refresh().topics_by_name["a"].topic_id
    producer_id, epoch = process.sequencer.open_producer("x", 60_000_000)
    began = process.sequencer.fold.next_offset((topic_id, 1))
    assert process.append(topic_id, 3, 1, Stamp(producer_id, epoch, 0, True)).refusal is None
    check(scene)
    scene.objects.create(archive_key(topic_id, 1, "day", 20_000, 0, began + 3, 1), b"")
    refused(scene, f"reaches to offset {began + 3} of topic a, but by the intake log nothing from {began} on")
    assert process.sequencer.end_transaction(producer_id, epoch, commit=True) is None
    check(scene)


def test_archives_of_what_the_log_does_not_know(scene: Scene) -> None:
    topic_id = scene.process().sequencer.refresh().topics_by_name["a"].topic_id
    scene.objects.create(archive_key(topic_id, 2, "day", 20_000, 0, 1, 1), b"")
    refused(scene, "is of a topic partition that the intake log does not know")


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_archives_of_an_epoch_that_the_control_log_does_not_know(scene: Scene, epoch: int) -> None:
    """The copy was made before a replay, which moved no offset."""
    topic_id = scene.process().sequencer.refresh().topics_by_name["a"].topic_id
    scene.objects.create(archive_key(topic_id, 1, "day", 20_000, 0, 1, 3), b"")
    refused(scene, f"was made in epoch 3, but the control log has only come to epoch {epoch}", epoch=epoch)
    check(scene, epoch=3)
    check(scene, epoch=4)


@pytest.mark.parametrize("kind", ["intake", "archive", "checkpoint"])
def test_an_empty_log_next_to_data(tmp_path: Path, kind: str) -> None:
    scene = Scene(tmp_path)
    check(scene)
    key = {
        "intake": intake_key(NOW_US, f"{ULID}00"),
        "archive": f"archive/{'a' * 32}/topic.json",
        "checkpoint": scene.store.key(5),
    }[kind]
    scene.objects.create(key, b"x")
    refused(scene, "the metadata store is empty, but the data folder holds")


def test_a_checkpoint_beyond_the_log(scene: Scene) -> None:
    scene.objects.create(scene.store.key(11), b"even if it is damaged")
    refused(scene, r"00011.bin was made when the intake log had 11 entries, but it ends at 10")


def test_checkpoints_of_other_entries(scene: Scene, tmp_path: Path) -> None:
    other = Scene(tmp_path / "other")
    other.seed = 50
    process = other.process(entries=5)
    process.fill(process.sequencer.declare_topic("a", 2).topic_id, 9)
    other.keep()
    process.checkpointer.run()
    scene.objects.create(scene.store.key(5), other.objects.read(other.store.key(5)))
    refused(scene, "was made of entries that the intake log does not have")
