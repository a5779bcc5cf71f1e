"""The vacuum on a real deployment deletes what is archived, and all that a later command needs is still
there.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.app.application import Application
from archiver.catalog.evidence import read_evidence
from archiver.catalog.table_layout import WATERMARKS
from archiver.config.settings import load_settings
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.errors import Halt
from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table, properties_of

GRACE_S = 3601.0
TOPICS = ("clicks", "files", "kept", "orders")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Driver(Deployment(tmp_path / "d")) as made:
        yield made


def send(driver: Driver, label: str, *topics: str) -> None:
    """A few records to each partition of these topics, each topic in a file of its own."""
    for topic in topics or TOPICS:
        for partition in range({"orders": 3, "clicks": 2}.get(topic, 1)):
            assert {
                one.outcome
                for one in driver.send(topic, [f"{label} {topic} {n}".encode() for n in range(5)], partition)
            } == {"ok"}


def keys(driver: Driver) -> list[str]:
    return [info.key for info in driver.application.objects.list("intake/")]


def needed(driver: Driver, *topics: str) -> set[str]:
    """The intake files that hold all records of these topics."""
    intake = driver.application.backlog()
    states = [intake.topics_by_name[topic] for topic in topics]
    return {
        segment.file.key
        for state in states
        for p in range(state.partitions)
        for segment in intake.segments((state.topic_id, p))
    }


def clean(driver: Driver, *, dry_run: bool = False):  # type: ignore[no-untyped-def]
    return driver.application.maintenance.cleaning(driver.reported.append, dry_run=dry_run).run(
        dry_run=dry_run
    )


def clean_out(driver: Driver) -> list[str]:
    """Mark, let the deletion delay pass, delete; the keys that were deleted."""
    driver.clock.ahead_s += GRACE_S
    condemned = clean(driver).condemned
    driver.clock.ahead_s += GRACE_S
    assert set(clean(driver).deleted) >= set(condemned)
    return [*condemned]


def everything(driver: Driver) -> dict[str, list[bytes | None]]:
    """The values of all records, through archives and intake."""
    return {
        f"{topic}:{p}": [one.value for one in found]
        for topic in TOPICS
        for p, found in driver.records(topic).items()
    }


def test_archived_intake_goes_and_everything_is_still_there(driver: Driver) -> None:
    send(driver, "one")
    driver.archive()
    before, kept = everything(driver), needed(driver, "kept")
    gone = clean_out(driver)
    assert set(keys(driver)) == kept
    assert kept.isdisjoint(gone)
    assert len(gone) == 6, "a file of each partition that is archived"
    assert everything(driver) == before
    driver.check_complete("orders", "clicks", "files")
    assert driver.application.ledger().condemned == {}
    send(driver, "two")
    driver.archive()
    driver.check_complete("orders", "clicks", "files")


def test_what_is_not_archived_stays_with_the_files_it_shares(driver: Driver) -> None:
    send(driver, "one")
    driver.archive(("orders", None))
    send(driver, "two")
    gone = clean_out(driver)
    assert set(keys(driver)) >= needed(driver, "clicks", "files", "kept")
    assert set(gone).isdisjoint(needed(driver, "clicks", "files", "kept"))
    driver.archive()
    driver.check_complete("orders", "clicks", "files")


def test_a_dry_run_changes_nothing(driver: Driver) -> None:
    send(driver, "one")
    driver.archive()
    driver.clock.ahead_s += GRACE_S
    data = driver.deployment.stored()
    tails = driver.application.intake_log.tail(), driver.application.control_log.tail()
    report = clean(driver, dry_run=True)
    assert len(report.condemned) == 6
    assert driver.deployment.stored() == data
    assert (driver.application.intake_log.tail(), driver.application.control_log.tail()) == tails


def test_d3_a_rollback_after_a_vacuum_finds_its_intake(driver: Driver) -> None:
    """Two commits, a vacuum, an external rollback to the first. Then an operator's repair by rule T4, and
    archiving again."""
    send(driver, "one", "clicks")
    driver.archive()
    send(driver, "two", "clicks")
    driver.archive()
    before, second = driver.records("clicks"), needed(driver, "clicks")
    gone = clean_out(driver)
    assert len(gone) == 2, "only what the first snapshot holds"
    assert set(keys(driver)) == second - set(gone)
    pin = driver.application.oldest_required()
    assert pin is not None
    assert (pin.topic, pin.partition) == ("clicks", 0)
    assert "retained snapshot" in pin.why
    with catalog_table(driver.deployment, "shop.clicks") as table:
        first = min(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
        with table.manage_snapshots() as manage:
            manage.rollback_to_snapshot(first.snapshot_id)
    report = clean(driver)
    assert [(topic["topic"], topic["doubted"]) for topic in report.topics if topic["doubted"]] == [
        ("clicks", True)
    ]
    assert (report.deleted, report.condemned, report.findings) == ([], [], [])
    assert driver.archive().topics["clicks"].state == "halted"
    _let_go_on(driver, first.snapshot_id)
    assert driver.archive().topics["clicks"].rows == 10
    driver.check_complete("clicks")
    assert driver.records("clicks") == before


def _let_go_on(driver: Driver, snapshot_id: int) -> None:
    """Let table and ledger state that they end where that snapshot does."""
    evidence = read_evidence(properties_of(driver.deployment, "shop.clicks"))
    assert evidence is not None
    assert evidence.offsets == (10, 10)
    with catalog_table(driver.deployment, "shop.clicks") as table:
        restored = type(evidence)(snapshot_id, 1, evidence.epoch, evidence.commit_id, (5, 5))
        with table.transaction() as transaction:
            transaction.set_properties({WATERMARKS: restored.to_json()})
        table_uuid: uuid.UUID = table.metadata.table_uuid
    app = driver.application
    app.leader.refresh()
    app.leader.take_over()
    app.leader.append(
        pb.TableCommitted(
            topic_id=bytes.fromhex(driver.topic_id("clicks")),
            table_uuid=table_uuid.bytes,
            snapshot_id=snapshot_id,
            sequence_number=2,
            watermarks=[pb.PartitionOffset(partition=partition, offset=5) for partition in (0, 1)],
        )
    )


def test_the_unreferenced_file_of_a_killed_writer_goes(driver: Driver) -> None:
    send(driver, "one", "kept")
    failpoints.arm("writer.append.before=error")
    (lost,) = driver.send("kept", [b"never"])
    assert lost.outcome == "failed"
    named = needed(driver, "kept")
    (stray,) = set(keys(driver)) - named
    assert clean_out(driver) == [stray]
    assert set(keys(driver)) == named
    assert [record.value for record in driver.records("kept")[0]] == [
        f"one kept {n}".encode() for n in range(5)
    ]


def test_a_writer_paused_across_the_barrier_is_failed_and_its_file_goes(driver: Driver) -> None:
    """Its upload is done, and its append waits while the vacuum of another process runs."""
    send(driver, "one", "kept")
    uploaded, go_on = threading.Event(), threading.Event()
    with Driver(driver.deployment) as paused:
        append = paused.application.sequencer.append_file

        def slow(*arguments: object):  # type: ignore[no-untyped-def]
            uploaded.set()
            assert go_on.wait(30)
            return append(*arguments)  # type: ignore[arg-type]

        paused.application.sequencer.append_file = slow  # type: ignore[assignment,method-assign]
        with paused.application.intake.writer() as writer:
            record = writer.send("kept", Record(None, b"late"), 0)
            assert uploaded.wait(30)
            (stray,) = set(keys(driver)) - needed(driver, "kept")
            driver.clock.ahead_s += GRACE_S
            assert clean(driver).condemned == [stray]
            go_on.set()
            assert record.result(30).outcome == "failed"
            assert record.result(30).offset is None
    driver.clock.ahead_s += GRACE_S
    assert clean(driver).deleted == [stray]
    assert set(keys(driver)) == needed(driver, "kept")
    assert len(driver.records("kept")[0]) == 5
    assert driver.audit()["verdict"] == "valid"


def test_an_older_copy_of_the_metadata_store_deletes_nothing(driver: Driver) -> None:
    """What was sent since then seems unreferenced, and none of it is archived: only the files show it."""
    send(driver, "one", "kept")
    copy = driver.deployment.root / "older"
    copy.mkdir()
    for path in driver.deployment.root.glob("metadata.db*"):
        shutil.copy(path, copy / path.name)
    send(driver, "two", "kept")
    send(driver, "three", "kept")
    before = keys(driver)
    driver.close()
    for path in driver.deployment.root.glob("metadata.db*"):
        path.unlink()
    for path in copy.iterdir():
        shutil.copy(path, driver.deployment.root / path.name)
    with Driver(driver.deployment) as older:
        older.clock.ahead_s += GRACE_S
        for dry_run in (True, False):
            with pytest.raises(Halt, match="put the newest one in place"):
                clean(older, dry_run=dry_run)
        assert keys(older) == before


@pytest.mark.parametrize("check", ["dry run", "conditional put"])
def test_a_failed_check_makes_a_daemon_check_again(
    driver: Driver, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.close()
    settings = load_settings(driver.deployment.config, {})
    with Application(settings, {}, driver.clock, lasting=True) as daemon:
        daemon.ready_to_append()
        if check == "dry run":
            with monkeypatch.context() as patch:
                patch.setattr("archiver.publish.log_rollback_check.check_log_is_newest", _halt)
                with pytest.raises(Halt, match="an older copy"):
                    daemon.maintenance.cleaning(print, dry_run=True)
        else:
            with monkeypatch.context() as patch:
                patch.setattr("archiver.app.deployment.check_conditional_put", _halt)
                with pytest.raises(Halt, match="an older copy"):
                    daemon.ready_to_append(recheck=True)
        monkeypatch.setattr("archiver.publish.log_rollback_check.check_log_is_newest", _halt)
        with pytest.raises(Halt, match="an older copy"):
            daemon.ready_to_append()


def _halt(*_: object) -> None:
    raise Halt("an older copy")


def test_a_topic_that_is_not_configured_any_more_keeps_everything(driver: Driver) -> None:
    send(driver, "one", "clicks", "orders")
    driver.archive()
    clicks = needed(driver, "clicks")
    document = driver.deployment.document()
    document["topics"] = [topic for topic in document["topics"] if topic["name"] != "clicks"]
    driver.deployment.write(document)
    with Driver(driver.deployment) as other:
        driver.clock.ahead_s += GRACE_S
        other.clock.ahead_s = driver.clock.ahead_s
        report = clean(other)
        assert set(report.condemned).isdisjoint(clicks)
        assert {
            "topic": "clicks",
            "why": "the topic is not in the configuration",
            "doubted": False,
        } in report.topics
        assert report.pin is not None
        assert report.pin.topic == "clicks"


def test_a_log_of_which_most_is_in_shelves(tmp_path: Path) -> None:
    """The segments are found in history files. Replaced checkpoints are deleted too, and a new process reads
    everything."""
    deployment = Deployment(
        tmp_path / "d", overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 4}}
    )
    with Driver(deployment) as driver:
        for label in ("one", "two", "three"):
            send(driver, label)
        driver.archive()
        assert driver.application.checkpointer.run() is not None
        before, kept = everything(driver), needed(driver, "kept")
        checkpoints = [info.key for info in driver.application.objects.list("checkpoint/")]
        history = [info.key for info in driver.application.objects.list("shelf/")]
        assert len(checkpoints) > 3
        gone = clean_out(driver)
        assert set(keys(driver)) == kept
        assert len([key for key in gone if key.startswith("intake/")]) == 6 * 3
        assert set(gone) - set(checkpoints) == {key for key in gone if key.startswith("intake/")}, (
            "every shelf is still named"
        )
        assert {info.key for info in driver.application.objects.list("shelf/")} >= set(history)
        assert len(list(driver.application.objects.list("checkpoint/"))) < len(checkpoints)
    with Driver(deployment) as fresh:
        assert everything(fresh) == before
        fresh.check_complete("orders", "clicks", "files")
        send(fresh, "four")
        fresh.archive()
        fresh.check_complete("orders", "clicks", "files")
