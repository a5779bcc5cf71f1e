"""`explain` on a real deployment reports every place where a record can be, and every problem it can have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver.objects.paths import parse_history_key
from archiver.runtime import failpoints
from archiver.runtime.rfc3339 import parse_time
from archiver.runtime.text import moment
from intake.producers import Stamp
from intake.records import RECORD_SCHEMA
from intake.write.queue import ReceivedBatch
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.catalog.foreign_rows import hide, rewrite
from tests.support.intake.transactions import Transactional

GRACE_S = 3601.0
SNAPSHOTS = {"snapshots_max": 1, "snapshots_age": "0s"}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        yield made


def reported(deployment: Deployment, place: str) -> dict[str, Any]:
    """The document; its text states the same."""
    done = deployment.cli("explain", place, "--output", "json")
    found: dict[str, Any] = done.json()
    text = deployment.cli("explain", place)
    assert text.code == done.code
    assert text.out.splitlines()[0].endswith(f": {found['state'].replace('_', ' ')}"), text.out
    assert found["why"] in text.out
    return {**found, "code": done.code}


def state(deployment: Deployment, place: str) -> tuple[str, int]:
    found = reported(deployment, place)
    return found["state"], found["code"]


def archived(driver: Driver, count: int = 6, topic: str = "clicks") -> None:
    driver.send(topic, [f"{topic} {n}".encode() for n in range(count)], 0)
    driver.archive()


def test_beyond_the_end(deployment: Deployment, driver: Driver) -> None:
    driver.send("clicks", [b"a", b"b"], 0)
    found = reported(deployment, "clicks:0:2")
    assert (found["state"], found["code"], found["next"]) == ("beyond_end", 3, 2)
    assert "has 2 offsets, 0 to 1; the next record gets offset 2" in found["why"]
    assert "has no offset yet" in reported(deployment, "clicks:1:0")["why"]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("clicks", "does not name a record"),
        ("clicks:0", "does not name a record"),
        ("clicks:0:-1", "does not name a record"),
        ("clicks:0:1:2", "does not name a record"),
        ("clicks:0:99999999999999999999", "no topic can have"),
        ("clicks:2:0", "it has 2, numbered from 0"),
        ("nowhere:0:0", "there is no topic nowhere"),
    ],
)
def test_a_bad_argument(deployment: Deployment, driver: Driver, place: str, why: str) -> None:
    driver.send("clicks", [b"a"], 0)
    done = deployment.cli("explain", place)
    assert (done.code, done.out) == (3, "")
    assert why in done.err


def test_in_an_open_transaction_and_behind_it(deployment: Deployment, driver: Driver) -> None:
    driver.send("clicks", [b"before"], 0)
    sender = Transactional(driver.application, driver.clock, "mine", timeout_s=1800)
    sender.send({("clicks", 0): [b"a", b"b"]})
    driver.send("clicks", [b"behind"], 0)
    driver.archive()
    assert state(deployment, "clicks:0:0") == ("committed", 0)
    inside, behind = reported(deployment, "clicks:0:2"), reported(deployment, "clicks:0:3")
    assert (inside["state"], inside["code"], inside["transaction"]["own"]) == ("in_transaction", 0, True)
    assert (behind["state"], behind["code"], behind["transaction"]["own"]) == ("behind_transaction", 0, False)
    for found in (inside, behind):
        assert found["transaction"]["transactional_id"] == "mine"
        assert moment(parse_time(found["transaction"]["deadline"])) in found["why"]
        assert moment(parse_time(found["transaction"]["since"])) in found["why"]
    assert "after offset 1" in behind["why"]


def test_aborted_and_by_whom(deployment: Deployment, driver: Driver) -> None:
    driver.send("kept", [b"so that the topics exist"])
    sender = Transactional(driver.application, driver.clock, "mine")
    sender.send({("clicks", 0): [b"a", b"b"]})
    sender.abort()
    again = Transactional(driver.application, driver.clock, "theirs")
    again.send({("clicks", 0): [b"c"]})
    Transactional(driver.application, driver.clock, "theirs")
    late = Transactional(driver.application, driver.clock, "late", timeout_s=1)
    late.send({("clicks", 0): [b"d"]})
    driver.clock.ahead_s += 5
    driver.archive()
    expected = [
        ("mine", "its producer aborted it"),
        ("mine", "its producer aborted it"),
        ("theirs", "opened again"),
        ("late", "too long"),
    ]
    for offset, (name, how) in enumerate(expected):
        found = reported(deployment, f"clicks:0:{offset}")
        assert (found["state"], found["code"], found["intake"], found["archive"]) == (
            "aborted",
            0,
            None,
            None,
        )
        assert found["aborted_by"]["transactional_id"] == name
        assert how in found["why"]


def test_aborted_so_long_ago_that_the_producer_is_unknown(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 3}}
    )
    with Driver(deployment) as driver:
        driver.send("kept", [b"so that the topics exist"])
        sender = Transactional(driver.application, driver.clock, "mine")
        sender.send({("clicks", 0): [b"a"]})
        sender.abort()
        for _ in range(12):
            driver.send("clicks", [b"later"], 0)
            driver.application.checkpointer.run_if_due()
        found = reported(deployment, "clicks:0:0")
        assert (found["state"], found["code"], found["aborted_by"]) == ("aborted", 0, None)
        part = reported(deployment, "clicks:0:2")["intake"]
        assert parse_history_key(part["shelf"]) is not None
        start, end = parse_history_key(part["shelf"]) or (0, 0)
        assert start <= part["log_index"] < end


def test_waiting_and_for_what(deployment: Deployment, driver: Driver) -> None:
    driver.send("clicks", [b"a", b"b"], 0)
    driver.send("kept", [b"k"], 0)
    found = reported(deployment, "clicks:0:1")
    assert (found["state"], found["code"], found["intake"]["row_group"], found["intake"]["row"]) == (
        "waiting",
        0,
        0,
        1,
    )
    assert "archive.idle_max" in found["why"]
    (record,) = [one for one in driver.records("clicks")[0] if one.offset == 1]
    assert found["intake"]["accepted"] == found["intake"]["ingested"]
    assert found["intake"]["shelf"] is None
    assert found["intake"]["key"] in {info.key for info in driver.application.objects.list("intake/")}
    assert record.source == "intake"
    kept = reported(deployment, "kept:0:0")
    assert (kept["state"], kept["code"], "archive kind none" in kept["why"]) == ("waiting", 0, True)
    document = deployment.document()
    document["topics"][1]["archive"]["min_bytes"] = -1
    deployment.write(document)
    assert "switched off" in reported(deployment, "clicks:0:1")["why"]
    document["topics"] = document["topics"][2:]
    deployment.write(document)
    found = reported(deployment, "clicks:0:1")
    assert (found["kind"], found["code"]) == ("unconfigured", 0)
    assert "topic clicks is not configured" in found["why"]


def test_waiting_though_its_intake_file_is_gone_or_damaged(deployment: Deployment, driver: Driver) -> None:
    driver.send("clicks", [b"a"], 0)
    driver.send("clicks", [b"b"], 0)
    files = [
        deployment.data / reported(deployment, f"clicks:0:{offset}")["intake"]["key"] for offset in (0, 1)
    ]
    files[0].unlink()
    data = bytearray(files[1].read_bytes())
    data[-20] ^= 1
    files[1].write_bytes(data)
    missing, damaged = reported(deployment, "clicks:0:0"), reported(deployment, "clicks:0:1")
    assert (missing["state"], missing["code"], missing["intake"]["deleted"]) == ("missing", 1, True)
    assert (damaged["state"], damaged["code"]) == ("damaged", 1)
    assert "footer is not the one" in damaged["why"]


def test_the_producer_of_a_numbered_batch(tmp_path: Path) -> None:
    # No flush before all are sent, however slow the machine is.
    deployment = Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "60s"}})
    with Driver(deployment) as driver:
        application = driver.application
        first, second = (application.sequencer.open_producer("", 10**9) for _ in range(2))
        writer = application.intake.writer()
        try:
            topic = application.topic("clicks")
            # One entry of the log, so the row decides.
            for partition, producer in ((0, None), (0, first), (0, second), (1, second)):
                rows = pa.RecordBatch.from_pylist([{"value": b"a", "headers": []}] * 2, schema=RECORD_SCHEMA)
                stamp = None if producer is None else Stamp(*producer, 0)
                writer.send_received(ReceivedBatch(topic, partition, rows, stamp), lambda: None)
            writer.flush()
        finally:
            writer.close()
        found = [
            reported(deployment, place)["intake"]
            for place in ("clicks:0:1", "clicks:0:2", "clicks:0:5", "clicks:1:0")
        ]
        assert len({one["log_index"] for one in found}) == 1
        assert [one["producer"] for one in found] == [
            None,
            *({"producer_id": one[0], "epoch": one[1]} for one in (first, second, second)),
        ]
        assert (
            f"sent by producer {second[0]} (epoch {second[1]})" in deployment.cli("explain", "clicks:0:5").out
        )


def test_archived_and_in_no_table_yet(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    with Driver(deployment) as driver:
        driver.send("clicks", [b"a", b"b"], 0)
        driver.send("files", [b"f"], 0)
        failpoints.arm("table.swap.before=error")
        assert driver.archive(("clicks", None)).topics["clicks"].state == "deferred"
        driver.archive(("files", None))
        found = reported(deployment, "clicks:0:1")
        assert (found["state"], found["code"]) == ("pending", 0)
        archive = found["archive"]
        assert (archive["pending"], archive["base"], archive["end"], archive["epoch"], archive["damage"]) == (
            True,
            0,
            2,
            1,
            None,
        )
        assert archive["control_index"] > 0
        assert archive["stored"] is not None
        file = deployment.data / archive["key"]
        data = file.read_bytes()
        file.unlink()
        assert state(deployment, "clicks:0:1") == ("damaged", 1)
        file.write_bytes(data[:-12] + bytes(12))
        assert state(deployment, "clicks:0:1") == ("damaged", 1)
        file.write_bytes(data)
        driver.archive()
        assert state(deployment, "clicks:0:1") == ("committed", 0)
        files = reported(deployment, "files:0:0")
        assert (files["state"], files["code"], files["table"], files["archive"]["pending"]) == (
            "archived",
            0,
            None,
            False,
        )
        (deployment.data / files["archive"]["key"]).unlink()
        assert state(deployment, "files:0:0") == ("missing", 1)


def test_committed_and_its_intake_deleted(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"archive": SNAPSHOTS})
    with Driver(deployment) as driver:
        archived(driver)
        found = reported(deployment, "clicks:0:4")
        assert (found["state"], found["code"], found["reason"]) == ("committed", 0, None)
        (file,) = found["table"]["files"]
        assert (file["rows"], file["path"].endswith(found["archive"]["key"])) == (1, True)
        assert (
            found["table"]["added_by"]["snapshot_id"] == file["snapshot_id"] == found["table"]["snapshot_id"]
        )
        assert found["intake"]["accepted"] is not None
        for number in range(2):
            driver.clock.ahead_s += GRACE_S
            driver.application.maintenance.cleaning(driver.reported.append).run()
            intake = reported(deployment, "clicks:0:4")["intake"]
            assert (intake["condemned"] is not None, intake["deleted"]) == (
                (True, False) if number == 0 else (False, True)
            )
        assert state(deployment, "clicks:0:4") == ("committed", 0)
        driver.send("clicks", [b"more"], 0)
        driver.archive()
        driver.send("clicks", [b"more"], 0)
        driver.archive()
        later = reported(deployment, "clicks:0:4")
        assert (later["state"], later["table"]["added_by"]) == ("committed", None), (
            "the snapshot that added it is expired"
        )
        assert later["table"]["files"] == found["table"]["files"]


def test_where_it_is_after_foreign_compaction(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    archived(driver)
    before = reported(deployment, "clicks:0:8")
    snapshot = rewrite(deployment, "replace")
    found = reported(deployment, "clicks:0:8")
    assert (found["state"], found["code"]) == ("committed", 0)
    (file,) = found["table"]["files"]
    assert (file["snapshot_id"], file["rows"]) == (snapshot, 1)
    assert file["path"] != before["table"]["files"][0]["path"]
    assert found["table"]["added_by"] == before["table"]["added_by"]
    Path(file["path"].removeprefix("file://")).unlink()
    gone = reported(deployment, "clicks:0:8")
    assert (gone["state"], gone["code"], "which is gone" in gone["why"]) == ("damaged", 1, True)


def test_removed_by_whom(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    other = rewrite(deployment, "overwrite", lambda offset: offset != 1)
    snapshot = rewrite(deployment, "overwrite", lambda offset: offset != 3)
    rewrite(deployment, "replace")
    found = reported(deployment, "clicks:0:3")
    assert (found["state"], found["code"]) == ("removed", 0)
    assert found["table"]["removed_by"]["snapshot_id"] == snapshot
    assert f"snapshot {snapshot} (overwrite)" in found["why"]
    assert reported(deployment, "clicks:0:1")["table"]["removed_by"]["snapshot_id"] == other
    assert state(deployment, "clicks:0:2") == ("committed", 0)


def test_hidden_by_a_delete_file(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    hide(deployment, lambda offset: offset == 2)
    found = reported(deployment, "clicks:0:2")
    assert (found["state"], found["code"], found["table"]["visible_rows"]) == ("removed", 0, 0)
    kept = reported(deployment, "clicks:0:3")
    assert (kept["state"], kept["code"], kept["table"]["visible_rows"]) == ("committed", 0, 1)


def test_missing_and_doubled(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    rewrite(deployment, "replace", lambda offset: offset != 3)
    missing = reported(deployment, "clicks:0:3")
    assert (missing["state"], missing["code"]) == ("missing", 1), (
        "a compaction removes nothing, by its operation"
    )
    rewrite(deployment, "append", lambda offset: offset == 4, remove=False)
    doubled = reported(deployment, "clicks:0:4")
    assert (doubled["state"], doubled["code"]) == ("doubled", 1)
    assert len(doubled["table"]["files"]) == 2
    assert state(deployment, "clicks:0:5") == ("committed", 0)


def test_a_damaged_archive(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    path = deployment.data / reported(deployment, "clicks:0:0")["archive"]["key"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    found = reported(deployment, "clicks:0:0")
    assert found["code"] in (1, 2)
    assert found["state"] in ("damaged", "unknown")
    assert "footer" in json.dumps(found)
    path.unlink()
    gone = reported(deployment, "clicks:0:0")
    assert (gone["state"], gone["code"]) == ("damaged", 1)


def test_a_table_that_cannot_be_looked_at(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    driver.send("clicks", [b"later"], 0)
    with catalog_table(deployment, "shop.clicks") as table:
        table.catalog.rename_table("shop.clicks", "shop.elsewhere")
    found = reported(deployment, "clicks:0:0")
    assert (found["state"], found["code"], found["table"]) == ("unknown", 2, None)
    assert "not in catalog local" in found["why"]
    waiting = reported(deployment, "clicks:0:6")
    assert (waiting["state"], waiting["code"]) == ("waiting", 0)
    assert "is gone; it was dropped or renamed" in waiting["why"]


def test_a_topic_that_was_deleted(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    driver.application.sequencer.delete_topic(driver.topic_id("clicks"))
    done = deployment.cli("explain", "clicks:0:0")
    assert (done.code, "topic clicks was deleted" in done.err) == (3, True)


def test_nothing_is_written(deployment: Deployment, driver: Driver) -> None:
    archived(driver)
    tails = driver.application.intake_log.tail(), driver.application.control_log.tail()
    before = deployment.stored()
    for place in ("clicks:0:0", "clicks:0:5", "clicks:0:6"):
        reported(deployment, place)
    assert (driver.application.intake_log.tail(), driver.application.control_log.tail()) == tails
    assert deployment.stored() == before
