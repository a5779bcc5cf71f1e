"""The catalog is lost: tables are rebuilt from the archives with the same content, with the ledger and from
the bucket alone.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from archiver.catalog import restore
from archiver.catalog.table_layout import REBUILT, WATERMARKS, stream_fields
from archiver.catalog.tables import SwapOutcome
from archiver.objects.paths import parse_archive_key
from archiver.runtime import failpoints
from tests.support.builders.deployment import Deployment, Done
from tests.support.builders.driver import Driver, append_nothing, catalog_table
from tests.support.builders.rebuilding import (
    TABLES,
    Before,
    copied,
    described_files,
    lose_catalog,
    lose_metadata,
    make_history,
    places_by_duckdb,
    rows_of,
    uuid_of,
)
from tests.support.catalog.tables import data_file
from tests.support.schema.orders import order

STEPS = [
    f"{step}.{when}"
    for step in ("table.create", "table.swap", "committed.append")
    for when in ("before", "after")
]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Deployment, Before]:
    """The history without its catalog, and what could be read before; tests work on copies."""
    deployment = Deployment(tmp_path_factory.mktemp("lost") / "d")
    with pytest.MonkeyPatch.context() as patch:
        before = make_history(deployment, patch)
    lose_catalog(deployment)
    return deployment, before


@pytest.fixture
def deployment(lost: tuple[Deployment, Before], tmp_path: Path) -> Deployment:
    return copied(lost[0], tmp_path / "d", failpoints_asked=True)


@pytest.fixture
def before(lost: tuple[Deployment, Before], deployment: Deployment) -> Before:
    return lost[1].moved(lost[0].root, deployment.root)


def rebuild(deployment: Deployment, *options: str) -> dict[str, Any]:
    """Run the rebuild; its document by topic. The exit code must match it."""
    done = deployment.cli("reconcile", "--rebuild", "--output", "json", *options)
    document = done.json()
    states = {item["state"] for item in document["tables"]}
    assert done.code == (2 if "unfinished" in states else 1 if "halted" in states else 0), (
        done.out,
        done.err,
    )
    return {item["topic"]: item for item in document["tables"]} | {"mode": document["mode"]}


def check_tables(deployment: Deployment, before: Before, *, same_files: bool = True) -> None:
    """Every row is there once, unchanged, for two readers; manifests describe each file as before."""
    for topic, table in TABLES.items():
        assert rows_of(deployment, table) == before.rows[topic]
        assert places_by_duckdb(deployment, table) == sorted(before.rows[topic])
        described = described_files(deployment, table)
        assert not same_files or described == before.files[topic]
        assert all(path.startswith(f"{deployment.data.as_uri()}/archive/") for path in described)


def test_the_history_is_what_it_is_meant_to_be(deployment: Deployment, before: Before) -> None:
    """Otherwise the tests below would prove less than they claim."""
    with Driver(deployment) as driver:
        ledger = driver.application.ledger().topic(driver.topic_id("orders"))
        assert sorted(ledger.schemas) == [1, 2]
        assert len(ledger.rewrites.replaced) == 1
        assert ledger.passed.ranges(2) == ((0, 4),)
    live = {path.removeprefix(f"{deployment.data.as_uri()}/") for path in before.files["orders"]}
    stored = {
        path.relative_to(deployment.data).as_posix()
        for path in deployment.data.glob("archive/*/data/**/*.parquet")
    }
    topic_id = next(key.split("/")[1] for key in live)
    strays = sorted(key for key in stored - live if f"/{topic_id}/" in key)
    parsed = [key for stray in strays if (key := parse_archive_key(stray)) is not None]
    # The replaced archive, and two of the attempt that failed.
    assert [(key.partition, key.base, key.end) for key in parsed] == [(0, 0, 22), (0, 22, 24), (2, 4, 7)]
    assert any(
        row["value"] and "customer" in row["value"] and row["value"]["note"]
        for row in before.rows["orders"].values()
    )


def test_the_catalog_is_gone(deployment: Deployment, before: Before) -> None:
    with Driver(deployment) as driver:
        driver.send("orders", [order(7)], 0)
        report = driver.archive().of("orders")
        assert report.state == "halted"
        assert "is gone" in (report.why or "")
    found = rebuild(deployment)
    assert found["mode"] == "ledger"
    assert {topic: found[topic]["state"] for topic in TABLES} == dict.fromkeys(TABLES, "rebuilt")
    assert {topic: found[topic]["rows"] for topic in TABLES} == {
        topic: len(rows) for topic, rows in before.rows.items()
    }
    check_tables(deployment, before)
    for topic, table in TABLES.items():
        assert uuid_of(deployment, table) != before.uuids[topic]
        with catalog_table(deployment, table) as opened:
            assert opened.properties[REBUILT] == before.uuids[topic]
    with Driver(deployment) as driver:
        assert driver.audit()["verdict"] == "valid"
        assert driver.archive().of("orders").state == "archived"
        driver.check_complete(*TABLES)
        assert driver.records("clicks") == before.records["clicks"]
    assert len(rows_of(deployment, "shop.orders")) == len(before.rows["orders"]) + 1
    again = rebuild(deployment)
    assert {topic: again[topic]["state"] for topic in TABLES} == dict.fromkeys(TABLES, "unchanged")


def test_what_waits_for_a_commit_goes_in_and_what_was_given_up_does_not(
    deployment: Deployment, before: Before
) -> None:
    assert rebuild(deployment)["orders"]["state"] == "rebuilt"
    with Driver(deployment) as driver:
        driver.send("orders", [order(50), order(51)], 1)
        failpoints.arm("table.swap.before=error")
        assert driver.archive(("orders", None)).of("orders").state == "deferred"
        failpoints.arm("")
        pending = driver.application.ledger().topic(driver.topic_id("orders")).pending
        assert [item.archive.rows for item in pending] == [2]
    lose_catalog(deployment)
    found = rebuild(deployment, "--topic", "orders")
    assert found["orders"]["state"] == "rebuilt"
    assert "clicks" not in found
    with Driver(deployment) as driver:
        assert driver.application.ledger().topic(driver.topic_id("orders")).pending == ()
        document = driver.audit()
        verdicts = {(item["topic"], item["partition"]): item["verdict"] for item in document["partitions"]}
        assert {verdicts["orders", partition] for partition in range(3)} == {"valid"}
    assert len(rows_of(deployment, "shop.orders")) == len(before.rows["orders"]) + 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_at_every_step(deployment: Deployment, before: Before) -> None:
    for step in STEPS:
        if (deployment.root / "catalog.db").exists():
            lose_catalog(deployment)
        killed = deployment.run("reconcile", "--rebuild", armed=f"{step}=kill")
        assert killed.code == -signal.SIGKILL, (step, killed.out, killed.err)
        found = rebuild(deployment)
        assert {found[topic]["state"] for topic in TABLES} <= {"rebuilt", "unchanged"}, (step, found)
        check_tables(deployment, before)
        with Driver(deployment) as driver:
            driver.check_complete(*TABLES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_step_that_fails_or_loses_its_reply(
    deployment: Deployment, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a commit for every two archives, and the fault in the first and in the second one."""
    monkeypatch.setattr(restore, "FILES_MAX", 2)
    for armed in [*(f"{step}=error" for step in STEPS), *(f"{step}=unknown" for step in STEPS[:4])]:
        if (deployment.root / "catalog.db").exists():
            lose_catalog(deployment)
        for place in (1, 2):
            deployment.cli("reconcile", "--rebuild", armed=f"{armed}@{place}")
        found = rebuild(deployment)
        assert {found[topic]["state"] for topic in TABLES} <= {"rebuilt", "unchanged"}, (armed, found)
        check_tables(deployment, before)
        with catalog_table(deployment, "shop.orders") as table:
            assert len(table.metadata.snapshots) == -(-len(before.files["orders"]) // 2)
    with Driver(deployment) as driver:
        driver.check_complete(*TABLES)


def foreign_table(deployment: Deployment) -> None:
    """A table of that name that is not the archiver's."""
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{deployment.root}/catalog.db?timeout=60")
    catalog.create_namespace("shop")
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    catalog.create_table("shop.orders", schema, f"{deployment.data.as_uri()}/other")
    catalog.close()


def test_a_table_of_another_writer_is_left_alone(deployment: Deployment, before: Before) -> None:
    foreign_table(deployment)
    found = rebuild(deployment)
    assert found["orders"]["state"] == "halted"
    assert "rename or drop it" in found["orders"]["why"]
    assert found["clicks"]["state"] == "rebuilt"
    with catalog_table(deployment, "shop.orders") as table:
        assert [field.name for field in table.schema().fields] == ["id"]
        table.catalog.rename_table("shop.orders", "shop.theirs")
    assert rebuild(deployment)["orders"]["state"] == "rebuilt"
    check_tables(deployment, before)


def test_a_half_made_table_that_another_writer_wrote_to(
    deployment: Deployment, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that changes no row does no harm; an external file does."""
    monkeypatch.setattr(restore, "FILES_MAX", 1)
    assert (
        deployment.cli("reconcile", "--rebuild", "--topic", "orders", armed="table.swap.before=error@2").code
        == 2
    )
    with catalog_table(deployment, "shop.orders") as table:
        append_nothing(table)
    assert (
        deployment.cli(
            "reconcile", "--rebuild", "--topic", "orders", armed="committed.append.before=error"
        ).code
        == 2
    )
    assert rows_of(deployment, "shop.orders") == before.rows["orders"]
    foreign = deployment.root / "foreign.parquet"
    shutil.copy(archives_of(deployment, "orders", before)[0], foreign)
    with Driver(deployment) as driver:
        tables = driver.application.tables("local")
        view = tables.load(("shop", "orders"))
        assert view is not None
        stolen = replace(
            data_file("file:///nowhere", stream_fields(view.schema_json), 0, 500, 501), path=foreign.as_uri()
        )
        assert (
            tables.swap(tables.prepare(view, [stolen], lambda *_: {"x": "y"}, {}, False, ())).outcome
            is SwapOutcome.APPLIED
        )
    found = rebuild(deployment, "--topic", "orders")["orders"]
    assert found["state"] == "halted"
    assert "drop it, then rebuild again" in found["why"]


def archives_of(deployment: Deployment, topic: str, before: Before) -> list[Path]:
    return sorted(Path(path.removeprefix("file://")) for path in before.files[topic])


def test_an_archive_that_is_missing_is_named(deployment: Deployment, before: Before) -> None:
    gone = archives_of(deployment, "clicks", before)[0]
    kept = deployment.root / "kept.parquet"
    gone.rename(kept)
    found = rebuild(deployment)
    assert found["clicks"]["state"] == "halted"
    assert (
        "partition 0: no archive that continues there holds the offsets from 0 on, up to 5"
        in found["clicks"]["why"]
    )
    assert found["orders"]["state"] == "rebuilt"
    kept.rename(gone)
    assert rebuild(deployment)["clicks"]["state"] == "rebuilt"
    check_tables(deployment, before)


def test_an_altered_archive_is_named(deployment: Deployment, before: Before) -> None:
    path = archives_of(deployment, "clicks", before)[0]
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    found = rebuild(deployment)
    assert found["clicks"]["state"] == "halted"
    assert path.name in found["clicks"]["why"]


def refused(done: Done, *words: str) -> None:
    assert done.code not in (0, 2)
    assert all(word in done.err for word in words), done.err


def test_what_is_asked_for_must_have_a_table(deployment: Deployment) -> None:
    for topic in ("files", "kept", "absent"):
        refused(deployment.cli("reconcile", "--rebuild", "--topic", topic), topic, "no table")
    refused(deployment.cli("reconcile", "--rebuild", "--fix"), "exclude each other")


def test_both_are_gone(deployment: Deployment, before: Before) -> None:
    away = lose_metadata(deployment)
    found = rebuild(deployment)
    assert found["mode"] == "bucket"
    assert {topic: found[topic]["state"] for topic in TABLES} == dict.fromkeys(TABLES, "rebuilt")
    # Aborted offsets with nothing else between two archives cannot be distinguished from those that are
    # lost.
    assert found["orders"]["holes"] == [[2, 0, 4]]
    assert found["clicks"]["holes"] == [[1, 0, 1]]
    check_tables(deployment, before)
    audit = deployment.cli("audit", "--output", "json")
    assert (audit.code, audit.json()["verdict"]) == (2, "unknown")
    reasons = {item["why"] for item in audit.json()["partitions"]}
    assert reasons, "it says why"
    assert all(reasons)
    for command in (["produce"], ["archive", "--all"]):
        refused(
            deployment.cli(*command, stdin=json.dumps({"topic": "orders", "value": None}) + "\n"),
            "the metadata store is empty",
        )
    snapshots = {table: uuid_of(deployment, table) for table in TABLES.values()}
    again = rebuild(deployment)
    assert {again[topic]["state"] for topic in TABLES} == {"rebuilt"}
    assert {table: uuid_of(deployment, table) for table in TABLES.values()} == snapshots, (
        "a second time changes nothing"
    )
    with Driver(deployment) as driver:
        assert (driver.application.control_log.tail(), driver.application.intake_log.tail()) == (0, 0)
    check_backup_returns(deployment, before, away)


def check_backup_returns(deployment: Deployment, before: Before, away: Path) -> None:
    """The metadata store was found again: the tables made without it are replaced by ones that continue."""
    for path in [*deployment.root.glob("metadata.db*")]:
        path.unlink()
    for path in away.iterdir():
        path.rename(deployment.root / path.name)
    found = rebuild(deployment)
    assert {found[topic]["state"] for topic in TABLES} == {"halted"}
    assert "drop it without purging" in found["orders"]["why"]
    (deployment.root / "catalog.db").unlink()
    again = rebuild(deployment)
    assert {again[topic]["state"] for topic in TABLES} == {"rebuilt"}
    check_tables(deployment, before)
    with Driver(deployment) as driver:
        driver.check_complete(*TABLES)


def test_from_the_bucket_with_a_hole_no_watermarks_are_said(deployment: Deployment, before: Before) -> None:
    lose_metadata(deployment)
    first, *_ = archives_of(deployment, "orders", before)
    first.unlink()
    replaced = next(first.parents[1].rglob(f"{first.name[:41]}-*.parquet"))
    replaced.unlink()
    found = rebuild(deployment)
    assert found["orders"]["state"] == "rebuilt"
    assert [0, 0, 22] in found["orders"]["holes"]
    assert "are lost" in found["orders"]["why"]
    with catalog_table(deployment, "shop.orders") as table:
        assert WATERMARKS not in table.properties
    rest = {place: row for place, row in before.rows["orders"].items() if place[0] != 0 or place[1] >= 22}
    assert rows_of(deployment, "shop.orders") == rest


def _copied(path: Path, **changes: int) -> Path:
    """The same bytes under the key of another range or epoch."""
    base, end, epoch = (int(part) for part in path.stem.split("-"))
    base, end, epoch = changes.get("base", base), changes.get("end", end), changes.get("epoch", epoch)
    other = path.with_name(f"{base:020}-{end:020}-{epoch:08}.parquet")
    shutil.copy(path, other)
    return other


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (lambda path: _copied(path, base=3, end=9, epoch=99), "archives overlap"),
        (lambda path: _copied(path, base=5, end=9, epoch=99), "footer says base"),
    ],
)
def test_from_the_bucket_what_contradicts_itself_halts_its_topic(
    deployment: Deployment, before: Before, place: Callable[[Path], Path], words: str
) -> None:
    lose_metadata(deployment)
    stray = place(archives_of(deployment, "clicks", before)[0])
    found = rebuild(deployment)
    assert found["clicks"]["state"] == "halted"
    assert words in found["clicks"]["why"]
    assert stray.name in found["clicks"]["why"]
    assert found["orders"]["state"] == "rebuilt"
    stray.unlink()
    assert rebuild(deployment)["clicks"]["state"] == "rebuilt"
    check_tables(deployment, before)
