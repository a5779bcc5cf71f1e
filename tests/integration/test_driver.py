"""Archiving rounds from end to end: the real log, store, ledger and SQL catalog; only Spark is left out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.commit import CommitOutcome, Committer
from archiver.catalog.identity import TableTarget
from archiver.catalog.table_layout import COMMIT_ID, RANGES, VALID_THROUGH, WATERMARKS
from archiver.objects.paths import parse_archive_key
from archiver.refine.task import PlanResult, RefineJob
from archiver.runtime import failpoints
from archiver.runtime.errors import Deposed, LeaseHeld, NotFound, OutcomeUnknown, RetryLater
from archiver.runtime.rfc3339 import parse_time
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import (
    Driver,
    append_nothing,
    catalog_table,
    properties_of,
    refine_here,
    spoiled,
)
from tests.support.schema.orders import order

ARCHIVED = ("orders", "clicks", "files")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        yield made


def values(count: int, first: int = 0) -> list[bytes | None]:
    return [order(number) for number in range(first, first + count)]


def taken(driver: Driver) -> list[list[tuple[str, int, int, int]]]:
    """Per round: topic, partition, base and end of every plan."""
    return [
        sorted((plan.topic, plan.partition, plan.base, plan.end) for plans in job.bundles for plan in plans)
        for job in driver.jobs
    ]


# what is archived


def test_nothing_due_makes_no_round(driver: Driver) -> None:
    driver.send("orders", values(5), 0)
    report = driver.archive(everything=False)
    assert (report.rounds, report.of("orders").state, driver.jobs) == (0, "idle", [])
    assert not driver.application.ledger().rounds
    driver.clock.ahead_s = 31
    report = driver.archive(everything=False)
    assert (report.rounds, report.of("orders").state, report.of("orders").rows) == (1, "archived", 5)
    assert driver.watermarks("orders") == {0: 5}
    assert driver.archive().rounds == 0, "nothing is left"
    driver.check_complete(*ARCHIVED)


def test_triggers_of_a_topic(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    document = deployment.document()
    document["topics"][0]["archive"] |= {"min_bytes": "1KB", "idle_max": 0}
    document["topics"][1]["archive"] |= {"max_bytes": 20}
    deployment.write(document)
    with Driver(deployment) as driver:
        driver.send("orders", [b"x" * 999], 0)
        driver.send("orders", [b"x" * 1000], 1)
        driver.send("clicks", [b"x" * 19], 0)
        driver.send("clicks", [b"x" * 20], 1)
        driver.archive(everything=False)
        assert taken(driver) == [[("clicks", 1, 0, 1), ("orders", 1, 0, 1)]]


def test_scope(driver: Driver) -> None:
    for partition in range(3):
        driver.send("orders", values(2), partition)
    driver.send("clicks", [b"a"], 0)
    report = driver.archive(("orders", frozenset({0, 1})))
    assert list(report.topics) == ["orders"]
    assert driver.watermarks("orders") == {0: 2, 1: 2}
    assert driver.watermarks("clicks") == {}
    driver.archive(("clicks", None))
    assert driver.watermarks("clicks") == {0: 1}
    with pytest.raises(NotFound, match="no topic ordres; the topics are clicks, files, kept, orders"):
        driver.archive(("ordres", None))
    with pytest.raises(NotFound, match="topic orders has no partition 3"):
        driver.archive(("orders", frozenset({2, 3})))


def test_a_topic_of_kind_none_is_never_archived(driver: Driver) -> None:
    driver.send("kept", [b"a"])
    report = driver.archive()
    assert (report.rounds, "kept" in report.topics) == (0, False)
    assert driver.archive(("kept", None)).topics == {}


def test_rounds_of_bounded_size(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"archive": {"round_bytes_max": 1000, "max_bytes": 500}}
    )
    with Driver(deployment) as driver:
        for _ in range(6):
            driver.send("clicks", [b"x" * 500], 0)
        report = driver.archive()
        assert report.rounds == 3
        assert [len(plans) for plans in taken(driver)] == [2, 2, 2]
        assert driver.watermarks("clicks") == {0: 6}
        with catalog_table(deployment, "shop.clicks") as table:
            assert [snapshot.summary[RANGES] for snapshot in table.snapshots()] == ["0:0-2", "0:2-4", "0:4-6"]
        driver.send("clicks", [b"x" * 500] * 6, 1)
        report = driver.archive(everything=False)
        assert report.rounds == 1, "without --all one round is all"
        driver.check_complete("clicks")


def test_partitions_at_a_time(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"archive": {"concurrent_max": 1}})
    with Driver(deployment) as driver:
        for partition in (2, 0, 1):
            driver.send("orders", values(1), partition)
        assert driver.archive().rounds == 3
        assert [plans[0][1] for plans in taken(driver)] == [2, 0, 1], "who waits longest goes first"
        driver.check_complete("orders")


# trouble


@pytest.mark.parametrize(
    ("error", "state"),
    [("retry", "deferred"), ("corrupted", "halted"), ("missing", "halted"), ("failed", "halted")],
)
def test_a_failing_partition_stops_no_other(error: Any, state: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"archive": {"max_bytes": 1}})
    with Driver(deployment) as driver:
        for _ in range(3):
            for partition in range(3):
                driver.send("orders", values(1), partition)
        driver.send("clicks", [b"a"], 0)
        orders = driver.topic_id("orders")
        report = driver.archive(
            refine=spoiled(
                lambda result: (result.topic_id, result.partition, result.base) == (orders, 1, 1), error
            )
        )
        assert (report.of("orders").state, report.of("clicks").state) == (state, "archived")
        assert "partition 1, offsets 1 to 1: spoilt by the test" in str(report.of("orders").why)
        assert driver.watermarks("orders") == {0: 3, 1: 1, 2: 3}, (
            "what lies before the failure is kept, what lies behind waits"
        )
        assert driver.watermarks("clicks") == {0: 1}
        assert not driver.application.ledger().topic(orders).pending
        assert driver.audit()["verdict"] == "valid"
        assert driver.archive().of("orders").state == "archived"
        driver.check_complete("orders", "clicks")


def test_a_plan_without_an_answer_is_done_again(driver: Driver) -> None:
    driver.send("orders", values(2), 0)
    driver.send("orders", values(2), 1)
    report = driver.archive(
        refine=lambda job: [result for result in refine_here(job) if result.partition != 0]
    )
    assert (report.of("orders").state, driver.watermarks("orders")) == ("deferred", {1: 2})
    assert "gave no answer" in str(report.of("orders").why)
    assert driver.archive().of("orders").state == "archived"
    driver.check_complete("orders")


def test_a_failing_topic_stops_no_other(driver: Driver) -> None:
    driver.send("orders", values(2), 0)
    driver.send("clicks", [b"a"], 0)
    driver.send("files", [b"a"])
    driver.archive()
    with catalog_table(driver.deployment, "shop.clicks") as table:
        table.transaction().set_properties({"archiver.topic-id": "f" * 32}).commit_transaction()
    for topic in ARCHIVED:
        driver.send(topic, [b"b"], 0)
    report = driver.archive()
    assert {name: item.state for name, item in report.topics.items()} == {
        "orders": "archived",
        "clicks": "halted",
        "files": "archived",
    }
    assert "belongs to a topic with id" in str(report.of("clicks").why)
    assert driver.watermarks("orders") == {0: 3}
    assert driver.watermarks("clicks") == {0: 1}
    assert driver.watermarks("files") == {0: 2}
    assert [item.waiting for item in report.topics.values()] == [1, 0, 0], (
        "also of what was halted before the round"
    )


def test_a_catalog_that_is_away_defers(driver: Driver) -> None:
    driver.send("clicks", [b"a"], 0)
    driver.send("files", [b"a"], 0)
    driver.send("orders", values(1), 0)
    failpoints.arm("table.swap.before=error")  # the first table to be committed is that of clicks
    report = driver.archive()
    assert {name: item.state for name, item in report.topics.items()} == {
        "clicks": "deferred",
        "files": "archived",
        "orders": "archived",
    }
    assert driver.watermarks("clicks") == {}
    assert len(driver.application.ledger().topic(driver.topic_id("clicks")).pending) == 1
    assert driver.archive().of("clicks").state == "archived"
    driver.check_complete(*ARCHIVED)


@pytest.mark.parametrize("is_away", [False, True])
def test_an_open_commit_whose_catalog_went_away_ends_the_commits_of_the_run(
    driver: Driver, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further topic would wait for the same catalog until its own time limit."""
    tried: list[str] = []

    def lost(_: Committer, target: TableTarget, *__: Any, **___: Any) -> CommitOutcome | None:
        tried.append(target.identifier[-1])
        error = OutcomeUnknown("the last request may still land")
        error.catalog_away = is_away
        raise error

    monkeypatch.setattr(Committer, "commit", lost)
    driver.send("clicks", [b"a"], 0)
    driver.send("orders", values(1), 0)
    report = driver.archive()
    assert {report.of(topic).state for topic in ("clicks", "orders")} == {"deferred"}
    assert tried == (["clicks"] if is_away else ["clicks", "orders"])


def test_refinement_that_must_be_repeated(driver: Driver) -> None:
    acknowledged = driver.send("orders", values(3), 0)

    def refine(job: RefineJob) -> list[PlanResult]:
        refine_here(job)
        raise RetryLater("the refinement job failed")

    with pytest.raises(RetryLater, match="the refinement job failed"):
        driver.archive(refine=refine)
    assert driver.application.lease.holder() is None, "the lease is given back"
    assert driver.application.ledger().rounds[-1].state == "started"
    assert driver.archive().of("orders").rows == 3
    assert driver.application.ledger().rounds[0].state == "abandoned"
    assert [record.value for record in driver.records("orders")[0]] == values(3)
    assert [item.offset for item in acknowledged] == [0, 1, 2]
    driver.check_complete("orders")


def test_an_unusable_configuration_stops_only_its_topic(driver: Driver) -> None:
    driver.send("orders", values(1), 0)
    driver.send("clicks", values(1), 0)
    (driver.deployment.root / "shop.binpb").write_bytes(b"\xff")
    report = driver.archive()
    assert [item.topic for item in report.misconfigured] == ["orders"]
    assert "shop.binpb" in (report.of("orders").why or "")
    assert report.of("clicks").state == "archived"
    assert driver.application.lease.holder() is None


# inheritance, epochs, leadership


@pytest.mark.parametrize(
    "name", ["written.append.after", "complete.append.after", "table.swap.before", "table.swap.after"]
)
def test_a_successor_inherits_what_is_pending(
    name: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first leader dies with archives in the ledger. Its successor commits those very files and makes no
    others."""

    class Died(BaseException):
        """An exception that no error handler catches."""

    def reach(reached: str) -> None:
        if reached == name:
            raise Died

    with Driver(deployment) as first:
        first.send("orders", values(4), 0)
        first.send("orders", values(4), 2)
        with monkeypatch.context() as patched:
            patched.setattr(failpoints, "reach", reach)
            with pytest.raises(Died):
                first.archive()
    with Driver(deployment) as second:
        orders = second.topic_id("orders")
        pending = {item.archive.key for item in second.application.ledger().topic(orders).pending}
        assert len(pending) == 2
        second.send("orders", values(1), 0)
        report = second.archive()
        assert report.epoch == 2
        assert taken(second) == [[("orders", 0, 4, 5)]], "inherited ranges are not planned again"
        assert not second.application.ledger().topic(orders).pending
        with catalog_table(deployment, "shop.orders") as table:
            paths = {task.file.file_path for task in table.scan().plan_files()}
        assert {key for key in pending if any(path.endswith(key) for path in paths)} == pending
        assert len(paths) == 3
        second.check_complete("orders")


def test_p2_a_path_of_a_killed_file_asks_for_a_new_epoch(deployment: Deployment) -> None:
    """While this leader refines, the table's history is cut. Its file may not enter any more, and its range
    is planned under a new path."""
    with Driver(deployment) as driver:
        driver.send("clicks", [b"a", b"b"], 0)
        driver.archive()
        driver.send("clicks", [b"c"], 0)

        def refine(job: RefineJob) -> list[PlanResult]:
            found = refine_here(job)
            if len(driver.jobs) == 2:
                with catalog_table(deployment, "shop.clicks") as table:
                    append_nothing(table)
                    append_nothing(table)
                    old = [
                        item.snapshot_id
                        for item in table.snapshots()
                        if item.snapshot_id != table.current_snapshot().snapshot_id
                    ]
                    with table.maintenance.expire_snapshots() as expire:
                        expire.by_ids(old)
            return found

        report = driver.archive(refine=refine)
        ledger = driver.application.ledger().topic(driver.topic_id("clicks"))
        assert len(ledger.killed) == 1
        killed = parse_archive_key(next(iter(ledger.killed)))
        assert killed is not None
        assert (killed.base, killed.end, killed.epoch) == (2, 3, 2)
        assert report.epoch == 3, "rule P2: a path is used once"
        assert [job.epoch for job in driver.jobs] == [1, 2, 3]
        assert any("cannot enter the table any more" in line for line in driver.reported)
        assert driver.watermarks("clicks") == {0: 3}
        assert [record.value for record in driver.records("clicks")[0]] == [b"a", b"b", b"c"]
        driver.check_complete("clicks")


def test_the_holder_of_the_lease_is_named(deployment: Deployment) -> None:
    with Driver(deployment) as one, Driver(deployment) as two:
        one.send("orders", values(1), 0)
        one.application.lease.acquire()
        with pytest.raises(LeaseHeld) as caught:
            two.archive()
        assert caught.value.holder == one.application.lease.holder()
        assert str(os.getpid()) in caught.value.holder
        assert two.application.ledger().epoch == 0, "nothing was appended"
        one.application.lease.release()
        assert two.archive().of("orders").state == "archived"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_that_slept_is_deposed(when: str, deployment: Deployment) -> None:
    with Driver(deployment) as sleeper, Driver(deployment) as successor:
        sleeper.send("orders", values(5), 0)
        sleeper.send("files", [b"a"])
        leader = successor.application.leader

        def refine(job: RefineJob) -> list[PlanResult]:
            if when == "before":
                leader.take_over()
            found = refine_here(job)
            if when == "after":
                leader.take_over()
            return found

        with pytest.raises(Deposed, match="epoch 2"):
            sleeper.archive(refine=refine)
        assert sleeper.application.lease.holder() is None
        ledger = successor.application.ledger()
        assert not ledger.topic(sleeper.topic_id("orders")).pending, "no entry names what it wrote"
        assert successor.archive().epoch == 3
        successor.check_complete("orders", "files")
        with catalog_table(deployment, "shop.orders") as table:
            paths = [task.file.file_path for task in table.scan().plan_files()]
        assert len(paths) == 1
        assert paths[0].endswith("-00000003.parquet")


# what ledger and table hold afterwards


def test_the_column_layout_has_the_ids_of_the_catalog(driver: Driver) -> None:
    driver.send("orders", values(2), 0)
    driver.send("files", [b"a"])
    driver.archive()
    orders = driver.topic_id("orders")
    schema = driver.application.schema(orders, driver.application.ledger().topic(orders).schema_version)

    def ids(document: Any, path: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        for item in document.get("fields", ()):
            name = f"{path}{item['name']}"
            found[name] = item["id"]
            found |= ids(item["type"], f"{name}.") if isinstance(item["type"], dict) else {}
        for kind in ("element", "key", "value"):
            if f"{kind}-id" in document:
                found[f"{path}{kind}"] = document[f"{kind}-id"]
                found |= ids(document[kind], f"{path}{kind}.") if isinstance(document[kind], dict) else {}
        return found

    recorded = ids(json.loads(schema.iceberg_json))
    with catalog_table(driver.deployment, "shop.orders") as table:
        assert table.schema().schema_id == 0
        assert ids(json.loads(table.schema().model_dump_json(by_alias=True))) == recorded
        assert table.scan().to_arrow().num_rows == 2
    assert {"kafka.offset", "value.id", "value.lines.element.sku"} <= recorded.keys()
    first = driver.application.ledger().next_index
    driver.send("orders", values(1), 0)
    driver.archive()
    assert list(driver.application.ledger().topic(orders).schemas) == [1], (
        f"recorded once, not again after entry {first}"
    )


def test_archives_without_a_table(driver: Driver) -> None:
    driver.send("files", [b"a", b"b"])
    report = driver.archive()
    assert (report.of("files").state, report.of("files").rows, report.of("files").snapshot_id) == (
        "archived",
        2,
        None,
    )
    ledger = driver.application.ledger().topic(driver.topic_id("files"))
    assert (ledger.watermarks, ledger.pending, ledger.table_uuid) == ({0: 2}, (), None), (
        "DATA_WRITTEN is the commit"
    )
    assert [record.source for record in driver.records("files")[0]] == ["archive", "archive"]
    driver.send("files", [b"c"])
    assert [record.source for record in driver.records("files")[0]] == ["archive", "archive", "intake"]
    driver.archive()
    driver.check_complete("files")


def test_what_a_commit_says_of_itself(driver: Driver) -> None:
    before_us = driver.clock.now_us()
    driver.send("orders", values(3), 0)
    driver.send("orders", values(2), 2)
    report = driver.archive()
    with catalog_table(driver.deployment, "shop.orders") as table:
        snapshot = table.current_snapshot()
        properties = dict(table.properties)
    summary = snapshot.summary.additional_properties
    assert snapshot.snapshot_id == report.of("orders").snapshot_id
    assert summary[RANGES] == "0:0-3,2:0-2"
    assert (summary["added-records"], summary["total-records"], summary["added-data-files"]) == (
        "5",
        "5",
        "2",
    )
    assert summary[COMMIT_ID] == properties[COMMIT_ID]
    assert summary[VALID_THROUGH] == properties[VALID_THROUGH]
    evidence = json.loads(properties[WATERMARKS])
    assert evidence == {
        "v": 1,
        "snapshot": snapshot.snapshot_id,
        "sequence": 1,
        "epoch": report.epoch,
        "commit": summary[COMMIT_ID],
        "offsets": [3, 0, 2],
    }
    assert properties["archiver.topic"] == "orders"
    round_ = driver.application.ledger().rounds[-1]
    assert (round_.state, round_.files, round_.rows, round_.committed) == ("settled", 2, 5, 2)
    assert str(round_.to_json()["commit_id"]) == summary[COMMIT_ID]
    through_us = parse_time(properties[VALID_THROUGH])
    assert before_us <= through_us <= driver.clock.now_us()
    assert through_us == driver.application.ledger().topic(driver.topic_id("orders")).valid_through_us


def test_valid_through_is_true_of_a_table_with_a_backlog(driver: Driver) -> None:
    def through_us() -> int:
        return parse_time(properties_of(driver.deployment, "shop.orders")[VALID_THROUGH])

    def outside() -> list[int]:
        reached = driver.watermarks("orders")
        return [
            record.ingest_us
            for partition, records in driver.records("orders").items()
            for record in records
            if record.offset >= reached.get(partition, 0)
        ]

    driver.send("orders", values(3), 0)
    driver.archive()
    complete_us = through_us()
    driver.send("orders", values(3), 1)
    driver.send("orders", values(3), 0)
    driver.clock.ahead_s = 60
    driver.send("orders", values(3), 2)
    driver.archive(("orders", frozenset({0})))
    assert all(ingest_us >= through_us() for ingest_us in outside())
    assert complete_us <= through_us() < driver.clock.now_us() - 30_000_000, "partition 1 waits since before"
    driver.archive(("orders", frozenset({1})))
    assert outside()
    assert all(ingest_us >= through_us() for ingest_us in outside())
    driver.archive()
    assert outside() == []
    assert through_us() >= driver.clock.now_us() - 30_000_000
    driver.check_complete("orders")


def test_ticks_keep_their_distance(driver: Driver) -> None:
    driver.send("orders", values(1), 0)
    driver.archive()
    tick_us = driver.application.backlog().tick_us
    assert tick_us > 0
    driver.archive()
    assert driver.application.backlog().tick_us == tick_us, "archive.tick has not passed"
    driver.clock.ahead_s = 10.5
    driver.archive()
    assert driver.application.backlog().tick_us > tick_us


def test_a_file_that_cannot_be_understood_does_not_count_as_a_topics_end(driver: Driver) -> None:
    """Results of plans that were not requested change nothing."""
    driver.send("orders", values(2), 0)

    def refine(job: RefineJob) -> list[PlanResult]:
        found = refine_here(job)
        return [*found, *(replace(result, base=result.base + 100, end=result.end + 100) for result in found)]

    driver.archive(refine=refine)
    assert driver.watermarks("orders") == {0: 2}
    driver.check_complete("orders")
