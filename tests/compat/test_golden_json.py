"""What an earlier version left behind of JSON topics: every version reads it all, proves it, and goes on."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from archiver.ledger.checkpoint import MAGIC
from archiver.log.checkpoints import unseal
from archiver.proto.ledger_state_pb2 import LedgerState
from archiver.refine.archive_file import footer_values
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from archiver.stream.rebuild import archive_records
from intake.read.digest import RecordsDigest
from tests.compat.make_golden_json import BATCHES, FIRST, ROWS, SECOND, STORED, document, key, send
from tests.support.builders.driver import Driver
from tests.support.builders.golden import Golden, golden_place, unpack

VERSIONS = sorted(path.name for path in STORED.iterdir())
SENT = BATCHES * ROWS
ARCHIVED = SENT - ROWS

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("version", VERSIONS)
def test_json_topics_are_read_proven_and_continued(version: str) -> None:
    with golden_place(f"json-{version}") as folder:
        unpack(version, folder, STORED)
        golden = Golden(folder)
        before = golden.digests()
        with Driver(golden) as driver:
            check_ledger(driver, golden)
            check_archives(driver, golden)
            check_records(driver, SENT, {"archive", "intake"})
            assert driver.audit()["verdict"] == "valid"
        check_columns(rows(golden))
        with Driver(golden) as driver:
            send(driver, range(SENT, SENT + ROWS))
            report = driver.archive().of("json")
            assert (report.state, report.schema_change) == ("archived", None), "the same columns as then"
            driver.check_complete("json")
            check_records(driver, SENT + ROWS, {"archive"})
        golden.check_taken_over(before)
        assert len(rows(golden)) == SENT + ROWS


def schemas(driver: Driver) -> dict[int, TopicSchema]:
    entries = driver.application.ledger().topic(driver.topic_id("json")).schemas
    return {version: TopicSchema.from_entry(entry) for version, entry in entries.items()}


def check_ledger(driver: Driver, golden: Golden) -> None:
    """The schemas come from a checkpoint: the log in front of it was trimmed."""
    stored = max((golden.data / "checkpoint" / "control").rglob("*.bin"))
    state = LedgerState.FromString(unseal(MAGIC, stored.read_bytes(), "the newest"))
    assert state.format == 4
    assert driver.application.control_log.floor() > 0
    found = schemas(driver)
    values = [one.value for one in found.values() if one.value is not None]
    assert [(one.format, one.message) for one in values] == [("json", "Reading")] * 2
    for one, schema in zip(values, (FIRST, SECOND), strict=True):
        assert one.field_ids.keys() >= schema["properties"].keys()
    assert all(one.key is not None and one.key.format == "json" for one in found.values())


def check_archives(driver: Driver, golden: Golden) -> None:
    """The columns give the digest of the records as they were sent."""
    found = schemas(driver)
    for path in sorted(golden.data.glob("archive/*/data/**/*.parquet")):
        footer = footer_values(pq.read_metadata(path))
        digest = RecordsDigest(int(footer["version"]))
        codec = RecordCodec(found[int(footer["schema"])])
        for batch in pq.ParquetFile(path).iter_batches():
            digest.update(archive_records(str(path), codec, batch))
        assert digest.digest().hex() == footer["records_digest"]


def check_records(driver: Driver, count: int, sources: set[str]) -> None:
    records = driver.records("json")[0]
    assert {record.source for record in records} == sources
    assert [(record.key, record.value) for record in records] == [
        (key(number), document(number)) for number in range(count)
    ]


def rows(golden: Golden) -> list[dict[str, Any]]:
    columns = (
        "id, total, price, note, day, at, lines, prices, odd, ok, more, __unrecognized__, __raw__, __err__"
    )
    chosen = ", ".join(f"value.{name} AS {name}" for name in columns.split(", "))
    sql = f"SELECT key.value AS sensor, {chosen} FROM shop.json ORDER BY kafka.offset"
    done = golden.cli("query", sql, "--output", "json", "--max-rows", "0")
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = done.json()["rows"]
    return found


def check_columns(found: list[dict[str, Any]]) -> None:
    assert len(found) == ARCHIVED
    assert found[17] == {
        "sensor": "7",
        "id": 17,
        "total": "18446744073709551598",
        "price": 17.25,
        "note": "żółw 17",
        "day": "2026-02-18",
        "at": "2026-02-28T23:59:59.000017Z",
        "lines": [{"sku": "a", "count": 17, "__unrecognized__": None}, None],
        "prices": {"x": 4.375, "y": None},
        "odd": "17",
        "ok": False,
        "more": "m",
        "__unrecognized__": "eyJuZXciOlsxLHsiYSI6ImIifV19",
        "__raw__": None,
        "__err__": None,
    }
    assert (found[8]["odd"], found[8]["more"]) == ('"\\"8\\"\\n"', None)
    assert [row for row, one in enumerate(found) if one["__err__"] is not None] == [5, 13, 21]
    assert [row for row, one in enumerate(found) if one["__raw__"] is not None] == [5, 6, 13, 14, 21, 22]
