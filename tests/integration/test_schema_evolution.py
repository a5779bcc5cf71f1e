"""Schemas that change between rounds of archiving: real log, ledger, store and SQL catalog, refinement in
this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import LongType, StringType

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.ledger.views import TopicLedger
from archiver.runtime import failpoints
from archiver.runtime.errors import RetryLater
from archiver.schema.evolution.state import TopicSchema
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.protos import F, field, file_of, message_class, source

TABLE = "shop.sales"
KILL_TIMEOUT_S = 180

Fields = tuple[tuple[str, int, Any], ...]
FIRST: Fields = (("price", 1, F.TYPE_INT32), ("city", 2, F.TYPE_STRING), ("note", 3, F.TYPE_STRING))
WIDER: Fields = (("price", 1, F.TYPE_INT64), ("town", 2, F.TYPE_STRING), ("code", 4, F.TYPE_INT32))
"""Widened, renamed, dropped, added."""
OTHER: Fields = (
    ("price", 1, F.TYPE_STRING),
    ("town", 2, F.TYPE_STRING),
    ("note", 3, F.TYPE_STRING),
    ("code", 4, F.TYPE_INT32),
)
"""A type that does not fit, and a field that comes back."""


def sale(fields: Fields) -> Any:
    file = file_of()
    message = file.message_type.add(name="Sale")
    for name, number, kind in fields:
        field(message, name, number, kind)
    return source(file, "Sale")


class Sales:
    """A topic with a table, whose message a test changes."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.archive_settings = {"kind": "iceberg", "catalog": "local", "table": TABLE}
        self.topic: dict[str, Any] = {"name": "sales", "partitions": 1, "archive": self.archive_settings}
        self.more = more
        self.deployment = Deployment(folder, overrides={"topics": [self.topic], **more})
        self.sent: list[bytes] = []
        self.driver: Driver | None = None

    def opened(self) -> Driver:
        """The archiver of a new process."""
        self.close()
        self.driver = Driver(self.deployment)
        return self.driver

    def close(self) -> None:
        if self.driver is not None:
            self.driver.close()
        self.driver = None

    def use(self, fields: Fields | None, columns: dict[str, str] | None = None) -> None:
        """From here on the values have these fields; None: they have no schema."""
        self.topic.pop("value", None)
        if fields is not None:
            self.topic["value"] = {
                "descriptor_set": "sale.binpb",
                "message": "shop.Sale",
                "columns": columns or {},
            }
            one = sale(fields)
            (self.deployment.root / "sale.binpb").write_bytes(one.descriptor_set)
            self.made = message_class(one)
        self.deployment.write(self.deployment.document())
        self.opened()

    def send(self, **values: Any) -> None:
        assert self.driver is not None
        payload = self.made(**values).SerializeToString()
        self.sent.append(payload)
        self.driver.send("sales", [payload], 0)

    def archive(self) -> Any:
        """One run; returns the topic's report."""
        assert self.driver is not None
        return self.driver.archive().of("sales")

    def ledger(self) -> TopicLedger:
        assert self.driver is not None
        return self.driver.application.ledger().topic(self.driver.topic_id("sales"))

    def schema(self) -> TopicSchema:
        ledger = self.ledger()
        return TopicSchema.from_entry(ledger.schemas[ledger.schema_version])

    def rows(self) -> list[dict[str, Any]]:
        """The values in the order of their offsets, as pyiceberg reads them, without nulls."""
        with catalog_table(self.deployment, TABLE) as table:
            found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["kafka"]["offset"])
        return [{name: item for name, item in row["value"].items() if item is not None} for row in found]

    def table_columns(self) -> dict[str, int]:
        with catalog_table(self.deployment, TABLE) as table:
            return {one.name: one.field_id for one in table.schema().find_field("value").field_type.fields}

    def check(self) -> None:
        """Everything is archived once, and comes back byte for byte."""
        assert self.driver is not None
        self.driver.check_complete("sales")
        assert [record.value for record in self.driver.records("sales")[0]] == self.sent
        schema = self.schema()
        ours = {one["name"]: one["id"] for one in schema.schema()["fields"][1]["type"]["fields"]}
        assert ours.items() <= self.table_columns().items()


@pytest.fixture
def sales(tmp_path: Path) -> Iterator[Sales]:
    made = Sales(tmp_path / "d")
    made.use(FIRST)
    yield made
    made.close()


def archived(sales: Sales) -> None:
    report = sales.archive()
    assert (report.state, report.why) == ("archived", None) or report.state == "archived", report.why


def test_rows_of_every_schema_are_read_with_their_meaning(sales: Sales) -> None:
    sales.send(price=1, city="Rome", note="x")
    archived(sales)
    sales.use(WIDER)
    sales.send(price=2**40, town="Oslo", code=7)
    archived(sales)
    sales.use(OTHER)
    sales.send(price="free", town="Bonn", note="y", code=8)
    archived(sales)
    sales.use(None)
    sales.made = message_class(sale(FIRST))
    sales.send(price=5)
    archived(sales)
    sales.use(FIRST)
    sales.send(price=6, city="Graz", note="z")
    archived(sales)
    assert sales.rows() == [
        {"price": 1, "city": "Rome", "note": "x"},
        {"price": 2**40, "city": "Oslo", "code": 7},
        {"price_v2": "free", "city": "Bonn", "note": "y", "code": 8},
        {"__raw__": sales.sent[3]},
        {"price": 6, "city": "Graz", "note": "z"},
    ]
    assert sorted(sales.ledger().schemas) == [1, 2, 3, 4, 5]
    sales.check()


def test_a_change_is_logged_and_reported_once(sales: Sales, caplog: pytest.LogCaptureFixture) -> None:
    sales.send(price=1, city="Rome")
    archived(sales)
    assert [one for one in caplog.messages if "schema" in one] == [], "a first version is no change"
    sales.use(OTHER)
    sales.send(price="free")
    report = sales.archive()
    assert report.schema_change == {
        "from": 1,
        "to": 2,
        "changes": 3,
        "incompatible": 1,
        "incompatible_fields": ["value.price"],
    }
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if "schema" in one.getMessage()]
    assert lines == [
        (
            "WARNING",
            "topic sales: schema 1 → 2, 1 incompatible: value.price (int → string, now in value.price_v2)",
        )
    ]
    sales.send(price="more")
    assert sales.archive().schema_change is None
    assert len([one for one in caplog.messages if "incompatible" in one]) == 1
    sales.check()


@pytest.mark.parametrize(
    ("policy", "accepting"), [("compatible", "evolve"), ("refuse", "compatible"), ("refuse", "evolve")]
)
@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_a_change_that_is_not_allowed_halts_until_it_is_accepted(
    sales: Sales, policy: str, accepting: str, kind: str
) -> None:
    if kind == "parquet":
        sales.topic["archive"] = {"kind": "parquet"}
    sales.topic["schema_change"] = policy
    sales.use(FIRST)
    sales.send(price=1, city="Rome", note="x")
    archived(sales)
    sales.use(WIDER if accepting == "compatible" else OTHER)
    assert sales.archive().state == "halted", "also with nothing to archive"
    sales.send(price=2 if accepting == "compatible" else "free")
    report = sales.archive()
    assert (report.state, report.waiting, report.schema_change) == ("halted", 1, None)
    assert report.why is not None
    assert f"schema_change: {policy} does not allow this" in report.why
    assert f"Accept it with schema_change: {accepting} and a reload" in report.why
    assert (
        "value.price (int → string" if accepting == "evolve" else "value.town (renamed from city)"
    ) in report.why
    assert sorted(sales.ledger().schemas) == [1], "nothing is recorded"
    if kind == "iceberg":
        assert set(sales.table_columns()) & {"price_v2", "town", "code"} == set(), "the table is as it was"
    sales.topic["schema_change"] = accepting
    sales.use(WIDER if accepting == "compatible" else OTHER)
    archived(sales)
    sales.topic["schema_change"] = policy
    sales.use(WIDER if accepting == "compatible" else OTHER)
    sales.send(price=3 if accepting == "compatible" else "more")
    archived(sales)
    assert sorted(sales.ledger().schemas) == [1, 2], "what was accepted stays accepted"
    if kind == "iceberg":
        sales.check()


def test_the_former_schema_ends_the_halt(sales: Sales) -> None:
    sales.topic["schema_change"] = "compatible"
    sales.use(FIRST)
    sales.send(price=1)
    archived(sales)
    sales.use(OTHER)
    assert sales.archive().state == "halted"
    sales.use(WIDER)
    sales.send(price=2)
    archived(sales)
    sales.check()


def test_a_configured_name_outlives_its_field(sales: Sales) -> None:
    for fields, values in ((FIRST, {"city": "Rome"}), (FIRST[:1], {"price": 1}), (FIRST, {"city": "Oslo"})):
        sales.use(fields, {"city": "place"})
        sales.send(**values)
        archived(sales)
    assert [row.get("place") for row in sales.rows()] == ["Rome", None, "Oslo"]
    sales.check()


def test_nothing_is_asked_of_the_catalog_without_need(sales: Sales) -> None:
    sales.send(price=1)
    archived(sales)
    with catalog_table(sales.deployment, TABLE) as table:
        before = table.metadata_location
    assert sales.archive().state == "idle"
    sales.use((("price", 1, F.TYPE_SINT32), *FIRST[1:]))
    assert sales.archive().state == "idle"
    with catalog_table(sales.deployment, TABLE) as table:
        assert table.metadata_location == before
    assert sorted(sales.ledger().schemas) == [1, 2]
    sales.send(price=2)
    archived(sales)
    sales.check()


STEPS = ("schema.append.before", "schema.append.after", "table.evolve.before", "table.evolve.after")
KILLED = """
import sys
from pathlib import Path
from archiver.runtime import failpoints
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver

class Found(Deployment):
    def __post_init__(self) -> None:
        pass

failpoints.arm(sys.argv[2])
Driver(Found(Path(sys.argv[1]))).archive()
"""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("action", ["error", "unknown", "kill"])
def test_a_change_that_breaks_off_is_carried_on(sales: Sales, step: str, action: str) -> None:
    sales.send(price=1, city="Rome", note="x")
    archived(sales)
    sales.use(WIDER)
    sales.send(price=2**40, town="Oslo", code=7)
    if action == "kill":
        sales.close()
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(sales.deployment.root), f"{step}=kill"],
            cwd=ROOT,
            timeout=KILL_TIMEOUT_S,
            check=False,
            capture_output=True,
        )
        assert done.returncode == -9, done.stderr
    else:
        failpoints.arm(f"{step}={action}")
        report = sales.archive()
        failpoints.arm("")
        looked_again = action == "unknown" and step == "table.evolve.after"
        assert report.state == (
            "archived" if looked_again or (action, step) == ("unknown", "table.evolve.before") else "deferred"
        )
    driver = sales.opened()
    recorded = driver.application.ledger().topic(driver.topic_id("sales"))
    assert recorded.schema_version == (1 if step == "schema.append.before" else 2)
    assert recorded.written_version <= recorded.schema_version
    sales.archive()
    assert sorted(sales.ledger().schemas) == [1, 2], "a change is recorded once"
    assert sales.rows() == [
        {"price": 1, "town": "Rome", "note": "x"},
        {"price": 2**40, "town": "Oslo", "code": 7},
    ]
    sales.check()


def test_an_id_that_another_process_took_is_abandoned(sales: Sales) -> None:
    sales.send(price=1)
    archived(sales)
    sales.use(WIDER)
    sales.send(price=2, code=3)
    failpoints.arm("schema.append.after=error")
    assert sales.archive().state == "deferred"
    failpoints.arm("")
    wanted = sales.schema().value
    with catalog_table(sales.deployment, TABLE) as table, table.update_schema() as update:
        update.add_column(("value", "mine"), StringType())
    assert wanted is not None and sales.table_columns()["mine"] == wanted.field_ids["4"]
    archived(sales)
    assert sorted(sales.ledger().schemas) == [1, 2, 3]
    columns = sales.table_columns()
    assert columns["code"] == columns["mine"] + 1
    assert (sales.ledger().written_version, sales.rows()[1]["code"]) == (3, 3)
    sales.check()


def test_an_archive_with_an_id_that_was_given_up_is_not_adopted(sales: Sales) -> None:
    """The archive is stored, in no ledger yet. Then its column is dropped externally and comes back with
    another id. The same leader meets its own key."""
    sales.send(price=1)
    archived(sales)
    sales.use(WIDER)
    driver = sales.opened()
    driver.application.close()
    driver.application = Application(
        load_settings(sales.deployment.config, {}), {}, driver.clock, lasting=True
    )
    sales.send(price=2, code=7)
    failpoints.arm("archive.upload.after=error")
    assert sales.archive().state == "deferred"
    failpoints.arm("")
    with catalog_table(sales.deployment, TABLE) as table, table.update_schema() as update:
        update.delete_column(("value", "code"))
    report = sales.archive()
    assert report.state == "halted" and "value.code" in report.why, report.why
    driver.application.leadership.resign()
    sales.opened()
    archived(sales)
    assert sales.rows()[1]["code"] == 7
    sales.check()


@pytest.mark.parametrize("what", ["dropped", "retyped"])
def test_a_column_that_another_writer_spoilt_halts_the_topic(sales: Sales, what: str) -> None:
    sales.send(price=1)
    archived(sales)
    with catalog_table(sales.deployment, TABLE) as table, table.update_schema() as update:
        if what == "dropped":
            update.delete_column(("value", "price"))
        else:
            update.update_column(("value", "price"), LongType())
    sales.opened()
    sales.send(price=2)
    report = sales.archive()
    assert report.state == "halted" and "value.price" in report.why, report.why
    assert sales.driver is not None and sales.driver.watermarks("sales") == {0: 1}


def test_a_column_that_another_writer_renamed_is_still_ours(sales: Sales) -> None:
    sales.send(price=1)
    archived(sales)
    with catalog_table(sales.deployment, TABLE) as table, table.update_schema() as update:
        update.rename_column(("value", "price"), "cost")
    sales.use((*FIRST, ("code", 4, F.TYPE_INT32)))
    sales.send(price=2, code=3)
    archived(sales)
    assert [row["cost"] for row in sales.rows()] == [1, 2]
    assert sales.driver is not None
    sales.driver.check_complete("sales")


def test_archives_of_the_former_version_still_get_in(sales: Sales) -> None:
    sales.send(price=1, city="Rome", note="x")
    failpoints.arm("table.swap.before=error")
    assert sales.archive().state == "deferred"
    failpoints.arm("")
    assert sales.ledger().pending
    sales.use(WIDER)
    sales.send(price=2, town="Oslo", code=7)
    archived(sales)
    assert not sales.ledger().pending and sorted(sales.ledger().schemas) == [1, 2]
    assert sales.rows() == [
        {"price": 1, "town": "Rome", "note": "x"},
        {"price": 2, "town": "Oslo", "code": 7},
    ]
    sales.check()


def test_a_schema_that_changes_before_the_first_is_recorded(sales: Sales) -> None:
    sales.send(price=1, city="Rome", note="x")
    failpoints.arm("schema.append.before=error")
    assert sales.archive().state == "deferred"
    failpoints.arm("")
    sales.use((("city", 2, F.TYPE_STRING), ("code", 4, F.TYPE_INT32)))
    archived(sales)
    assert sorted(sales.ledger().schemas) == [1]
    assert sales.rows()[0]["city"] == "Rome"
    assert sales.table_columns()["price"], "what the table has already stays"
    sales.check()


def test_archives_without_a_table_evolve_in_the_ledger_alone(tmp_path: Path) -> None:
    sales = Sales(tmp_path / "d")
    sales.archive_settings.clear()
    sales.archive_settings["kind"] = "parquet"
    for fields, values in ((FIRST, {"price": 1}), (WIDER, {"price": 2**40}), (OTHER, {"price": "free"})):
        sales.use(fields)
        sales.send(**values)
        archived(sales)
    assert sales.driver is not None
    assert sorted(sales.ledger().schemas) == [1, 2, 3]
    assert [record.value for record in sales.driver.records("sales")[0]] == sales.sent
    sales.driver.check_complete("sales")
    sales.close()


def test_a_schema_that_no_entry_can_hold_names_topic_and_message(tmp_path: Path) -> None:
    sales = Sales(tmp_path / "d", log={"append_backoff": "5ms", "entry_bytes_max": "64KiB"})
    sales.use(FIRST)
    sales.send(price=1)
    archived(sales)
    sales.use(
        (*FIRST, *((f"a_long_name_for_a_column_{number}", number, F.TYPE_INT32) for number in range(10, 900)))
    )
    sales.send(price=2)
    report = sales.archive()
    assert report.state == "halted"
    assert "topic sales" in report.why and "shop.Sale" in report.why and "log.entry_bytes_max" in report.why
    with catalog_table(sales.deployment, TABLE) as table:
        assert len(table.metadata.schemas) == 1
    sales.close()


def test_a_table_that_does_not_answer_keeps_its_topic_waiting(
    sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.send(price=1)
    archived(sales)
    sales.use(WIDER)
    sales.send(price=2)
    assert sales.driver is not None
    tables: Any = sales.driver.application.tables("local")

    def away(*_: object) -> None:
        raise RetryLater("the catalog is away")

    monkeypatch.setattr(tables, "load", away)
    assert sales.archive().state == "deferred"
    monkeypatch.undo()
    assert sorted(sales.ledger().schemas) == [1]
    archived(sales)
    sales.check()
