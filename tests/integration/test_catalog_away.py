"""Archiving while the catalog is unavailable (decision 0024).

Archives are written up to a bound, readers see them, and the table catches up by itself.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation

from tests.support.catalog.foreign_hands import _Replace, live
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.rest_rounds import PARTITIONS, TOPIC, WIDER, RestRounds
from tests.support.servers.http_faults import Fault, Play

pytestmark = pytest.mark.spark  # needs Java


@pytest.fixture
def rounds(rest_catalog: RestCatalog, tmp_path: Path) -> Iterator[RestRounds]:
    """A topic with a table that has some rows."""
    with RestRounds(tmp_path / f"away{abs(hash(tmp_path)) % 10**8}", rest_catalog) as made:
        made.send()
        assert made.archive()[0].state == "archived"
        made.check_settled()
        yield made


def away(rounds: RestRounds, times: int = 1) -> None:
    """Run so many rounds, each with new records, none of which reaches the catalog."""
    for _ in range(times):
        rounds.send()
        report, run = rounds.archive()
        assert (report.state, run.commits) == ("deferred", []), report.why


def readable(rounds: RestRounds) -> list[tuple[int, int]]:
    """(partition, offset) of what a reader of the stream gets."""
    return sorted(
        (partition, one.offset) for partition, found in rounds.opened.records(TOPIC).items() for one in found
    )


def caught_up(rounds: RestRounds) -> None:
    """The next run brings everything into the table, in one commit."""
    swaps = rounds.faults.seen("swap")
    report, run = rounds.archive()
    assert report.state == "archived", report.why
    assert [item.end for item in run.commits] == ["committed"]
    assert rounds.faults.seen("swap") == swaps + 1
    rounds.check_settled()
    assert rounds.archive()[0].why is None


@pytest.mark.parametrize("how", ["refused", "silent", "stopped"])
def test_archives_are_written_and_come_into_the_table_in_order(rounds: RestRounds, how: str) -> None:
    if how == "refused":
        rounds.faults.refuse()
    elif how == "silent":
        rounds.hurry()
        rounds.faults.be_silent()
    else:
        rounds.faults.refuse()
        rounds.close()  # and the archiving process restarts during that time
    before = rounds.rows()
    away(rounds, 2)
    rounds.close()
    away(rounds)
    assert rounds.rows() == before
    assert len(rounds.ledger.pending) == 3 * PARTITIONS
    assert readable(rounds) == sorted(rounds.sent)
    report, _ = rounds.archive()
    assert (report.archives, report.waiting) == (0, 0)
    assert f"{3 * PARTITIONS} archives" in (report.why or "")
    assert "cannot be" in (report.why or "")
    rounds.faults.recover()
    rounds.hurry(again=False)
    caught_up(rounds)


def test_no_round_begins_for_nothing(rounds: RestRounds) -> None:
    rounds.faults.refuse()
    away(rounds)
    assert [rounds.archive()[1].rounds for _ in range(3)] == [0, 0, 0]


def test_no_more_wait_than_the_bound_says(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    with RestRounds(tmp_path / "bounded", rest_catalog, {"pending_files_max": 5}) as rounds:
        rounds.send()
        rounds.archive()
        rounds.faults.refuse()
        for _ in range(4):
            rounds.send()
            report, _ = rounds.archive()
        assert len(rounds.ledger.pending) == 5
        assert {item.archive.partition for item in rounds.ledger.pending} == {0, 1}
        assert report.state == "deferred"
        assert "archive.pending_files_max" in (report.why or "")
        assert report.waiting
        assert readable(rounds) == sorted(rounds.sent), "what is in no archive is read from intake"
        rounds.faults.recover()
        report, _ = rounds.archive()
        assert (report.state, report.waiting) == ("archived", 0)
        rounds.check_settled()


def test_a_bound_of_none_writes_none(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    with RestRounds(tmp_path / "none", rest_catalog, {"pending_files_max": 0}) as rounds:
        rounds.send()
        rounds.archive()
        rounds.faults.refuse()
        rounds.send()
        assert rounds.archive()[0].archives == 0
        assert not rounds.ledger.pending


def test_a_table_that_was_never_seen_waits(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    with RestRounds(tmp_path / "never", rest_catalog) as rounds:
        rounds.send()
        rounds.faults.refuse()
        report, _ = rounds.archive()
        assert (report.state, report.archives) == ("deferred", 0)
        assert "catalog local cannot be reached" in (report.why or "")
        rounds.faults.recover()
        rounds.archive()
        rounds.check_settled()


def test_new_columns_wait_for_the_catalog(rounds: RestRounds) -> None:
    rounds.faults.refuse()
    away(rounds)
    rounds.use(WIDER)
    rounds.send()
    report, _ = rounds.archive()
    assert (report.state, report.archives) == ("deferred", 0)
    assert "schema of topic sales has changed" in (report.why or "")
    assert readable(rounds) == sorted(rounds.sent)
    rounds.faults.recover()
    assert rounds.archive()[0].state == "archived"
    rounds.check_settled()
    assert "code" in rounds.columns()


def test_another_granularity_waits_for_the_catalog(rounds: RestRounds) -> None:
    rounds.close()
    document = rounds.deployment.document()
    document["topics"][0]["archive"]["partition_by"] = ["hour"]
    rounds.deployment.write(document)
    rounds.faults.refuse()
    rounds.send()
    report, _ = rounds.archive()
    assert (report.state, report.archives) == ("deferred", 0)
    assert "is to be partitioned by hour, and its records wait in intake until its table is" in (
        report.why or ""
    )
    assert rounds.archive()[0].archives == 0
    rounds.faults.recover()
    assert rounds.archive()[0].state == "archived"
    rounds.check_settled()


def test_a_catalog_that_goes_away_in_the_middle_is_left_alone_for_the_rest_of_the_run(
    rest_catalog: RestCatalog,
    tmp_path: Path,
) -> None:
    others = 4
    with RestRounds(tmp_path / "middle", rest_catalog, {"commit_attempts_max": 3}, others=others) as rounds:

        def send() -> None:
            rounds.send()
            for number in range(others):
                rounds.opened.send(f"other{number}", [b"x"])

        send()
        rounds.archive()
        send()
        rounds.hurry()
        rounds.faults.be_silent()
        asked = rounds.faults.seen("load")
        _, run = rounds.archive()
        assert [item.state for item in run.topics.values()] == ["deferred"] * (others + 1)
        assert all(item.archives for item in run.topics.values())
        assert rounds.faults.seen("load") - asked <= others, "not every topic waited for an answer"
        rounds.faults.recover()
        rounds.hurry(again=False)
        rounds.archive()
        rounds.opened.check_complete(TOPIC, *(f"other{number}" for number in range(others)))


def test_one_silent_table_does_not_keep_the_others_out(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    with RestRounds(tmp_path / "one", rest_catalog, others=1) as rounds:
        rounds.send()
        rounds.opened.send("other0", [b"x"])
        rounds.archive()
        rounds.send()
        rounds.opened.send("other0", [b"y"])
        rounds.hurry()
        rounds.faults.arm(Fault(Play.SILENT_BEFORE), "load")  # of other0, the first by name
        _, run = rounds.archive()
        assert (run.of("other0").state, run.of(TOPIC).state) == ("deferred", "archived")
        rounds.archive()
        rounds.opened.check_complete(TOPIC, "other0")


def compact(table: Table) -> None:
    """Rewrite every file externally under another name, in a snapshot as Java's compaction makes it."""
    producer = _Replace(Operation.OVERWRITE, Transaction(table, autocommit=True), table.io)
    number = len(table.snapshots())
    for old in live(table):
        new = copy.copy(old)
        new._data = list(old._data)
        path = old.file_path.removesuffix(".parquet") + f"-{number}.parquet"
        shutil.copy(old.file_path.removeprefix("file://"), path.removeprefix("file://"))
        new._data[new._data.index(old.file_path)] = path
        producer.append_data_file(new)
        producer.delete_data_file(old)
    producer.commit()


def forget_the_past(table: Table) -> None:
    """Expire all snapshots but the current one, externally."""
    for snapshot in table.snapshots():
        if snapshot.snapshot_id != table.metadata.current_snapshot_id:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()


@pytest.mark.parametrize("expired", [False, True], ids=["compacted", "compacted and expired"])
def test_what_others_do_in_between(rounds: RestRounds, expired: bool) -> None:
    """Rule C3. A lineage that is cut does not show that the archives were never in the table. They are made
    again, since intake has all records."""
    rounds.faults.refuse()
    away(rounds, 2)
    first = {item.archive.key for item in rounds.ledger.pending}
    client = rounds.catalog.client()
    for _ in range(2):
        compact(client.load_table(rounds.table))
    if expired:
        forget_the_past(client.load_table(rounds.table))
    client.close()
    clean(rounds)
    rounds.faults.recover()
    for _ in range(3):
        rounds.archive()
    rounds.check_unharmed()
    assert rounds.rows() == sorted(rounds.sent)
    assert not rounds.ledger.pending
    assert set(rounds.ledger.killed) == (first if expired else set())


def clean(rounds: RestRounds) -> None:
    """Pass every minimum age and run the vacuum twice: it may mark, and it may delete."""
    for _ in range(2):
        rounds.opened.clock.ahead_s += 30 * 86400
        report = rounds.opened.application.maintenance.cleaning(lambda _: None).run()
        assert not [key for key in report.deleted if key.startswith("intake/")]


def test_d3_intake_of_pending_archives_stays(rounds: RestRounds) -> None:
    """Rules D1 and D3: while the table cannot be read, nothing that it may need is deleted, however long that
    lasts."""
    rounds.faults.refuse()
    away(rounds, 2)
    clean(rounds)
    rounds.check_unharmed()
    rounds.faults.recover()
    caught_up(rounds)
