"""External changes of a table with the tools that people have: Spark SQL and Iceberg's procedures.

Each test has a deployment with two tables, and Spark changes one of them. After each change there is a round
with new records for both. The other topic advances in that very round (`aftermath` holds it), and this one
continues or halts. Audit and reconcile report of it what the table of external changes in the runbook states.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.reconciling import archived, fixed, left, metadata_location, reconciled
from tests.support.schema.floats import sample, sampled
from tests.support.spark.foreign_spark import ForeignSpark, aftermath, foreign_spark, goes_on  # noqa: F401 - a fixture
from tests.support.spark.spark_process import Refused

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.turns(4)]

COMPACT = "CALL system.rewrite_data_files(table => 'shop.clicks', options => map('rewrite-all', 'true'))"
EXPIRE = (
    "CALL system.expire_snapshots(table => 'shop.clicks', retain_last => 1, older_than => TIMESTAMP "
    "'2100-01-01 00:00:00')"
)
SORTED = (
    "CALL system.rewrite_data_files(table => 'shop.clicks', strategy => 'sort', sort_order => "
    "'kafka.event_timestamp, kafka.offset DESC', "
    "options => map('rewrite-all', 'true'))"
)
ORPHANS = "CALL system.remove_orphan_files(table => 'shop.clicks')"
SEVERAL_DAYS_S = 10 * 86400
ONE_ROW = "kafka.partition = 0 AND kafka.offset = 3"
INSERTED = (
    "INSERT INTO shop.clicks SELECT key, value, headers, named_struct('partition', {partition}, "
    "'offset', {offset}L, 'event_timestamp', "
    "kafka.event_timestamp, 'ingest_timestamp', kafka.ingest_timestamp, 'batch_start', 4711L) FROM "
    "shop.clicks WHERE " + ONE_ROW
)


class Hands:
    """Spark on one deployment."""

    def __init__(self, spark: ForeignSpark, deployment: Deployment) -> None:
        self._spark = spark
        self.deployment = deployment

    def do(self, *statements: str) -> None:
        for statement in statements:
            self._spark.sql(self.deployment, statement)

    def ask(self, query: str) -> list[list[object]]:
        return self._spark.sql(self.deployment, query)

    def refused(self, statement: str) -> str:
        with pytest.raises(Refused) as reported:
            self.do(statement)
        return str(reported.value)

    def snapshots(self) -> list[tuple[int, str]]:
        """Ids and times, oldest first."""
        found = self.ask(
            "SELECT snapshot_id, cast(committed_at AS string) FROM shop.clicks.snapshots ORDER BY "
            "committed_at"
        )
        return [(int(str(number)), str(time)) for number, time in found]

    def rows(self) -> dict[int, tuple[int, int]]:
        """Rows and different offsets by partition, as Spark reads them."""
        query = (
            "SELECT kafka.partition, count(*), count(DISTINCT kafka.offset) FROM shop.clicks GROUP BY 1 "
            "ORDER BY 1"
        )
        return {
            int(str(partition)): (int(str(rows)), int(str(offsets)))
            for partition, rows, offsets in self.ask(query)
        }


def partition_by(deployment: Deployment, granularity: str) -> None:
    document = deployment.document()
    document["topics"][1]["archive"]["partition_by"] = [granularity]
    deployment.write(document)


@pytest.fixture
def hands(tmp_path: Path, foreign_spark: ForeignSpark) -> Hands:  # noqa: F811
    """Two commits to each table: offsets 0 to 8 of partition 0 of `clicks`, 0 to 2 of partition 1."""
    return Hands(foreign_spark, archived(tmp_path / "d"))


# external compaction or expiry: the topic continues


def test_compaction_of_manifests_and_of_files_is_carried_on_from(hands: Hands) -> None:
    hands.do("CALL system.rewrite_manifests('shop.clicks')")
    goes_on(hands.deployment)
    hands.do(COMPACT)
    goes_on(hands.deployment)
    (live,) = hands.ask("SELECT count(*) FROM shop.clicks.files WHERE file_path NOT LIKE '%/partition=%'")
    assert live == [1], "one file of Spark's has the rows of both partitions"
    with Driver(hands.deployment) as driver:
        proofs = {
            (item["topic"], item["proof"])
            for item in driver.audit()["partitions"]
            if item["topic"] in ("clicks", "orders")
        }
    assert proofs == {("clicks", "rows"), ("orders", "bounds")}, "files of others are read"
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


def test_a_rewrite_by_an_order_of_the_users_own_is_carried_on_from(hands: Hands) -> None:
    hands.do(SORTED)
    goes_on(hands.deployment)
    (live,) = hands.ask("SELECT count(*) FROM shop.clicks.files WHERE file_path NOT LIKE '%/partition=%'")
    assert live == [1], "one file of Spark's has the rows of both partitions"
    assert hands.rows() == {0: (10, 10), 1: (3, 3)}


def test_spark_finds_nan_above_every_number(tmp_path: Path, foreign_spark: ForeignSpark) -> None:  # noqa: F811
    """Archives of 1.0, NaN, 2.0, of NaN alone, and of 3.0; none that holds a match is skipped."""
    hands = Hands(foreign_spark, sampled(tmp_path / "d"))
    with Driver(hands.deployment) as driver:
        for values in ((1.0, math.nan, 2.0), (math.nan,), (3.0, -0.0)):
            driver.send("orders", [sample(value) for value in values], 0)
            assert driver.archive().exit_code == 0
    filters = {
        "isnan({0})": 2,
        "{0} > 100": 2,
        "{0} = double('NaN')": 2,
        "NOT ({0} <= 2.0)": 3,
        "{0} <= 2.0": 3,
        "{0} = 0.0": 1,
        "{0} < 0.0": 0,
    }
    for column in ("value.celsius", "value.ratio", "value.sensor.level"):
        for text, count in filters.items():
            assert hands.ask(f"SELECT count(*) FROM shop.orders WHERE {text.format(column)}") == [[count]], (
                column,
                text,
            )
        assert hands.ask(f"SELECT isnan(max({column})), min({column}) FROM shop.orders") == [[True, 0.0]]


def test_a_foreign_expiry_and_removal_of_orphans_are_refused_unless_a_property_asks_for_it(
    hands: Hands,
) -> None:
    before = metadata_location(hands.deployment)
    for statement in (EXPIRE, ORPHANS, "DROP TABLE shop.clicks PURGE"):
        assert "GC is disabled" in hands.refused(statement)
    assert metadata_location(hands.deployment) == before
    hands.do("ALTER TABLE shop.clicks SET TBLPROPERTIES ('gc.enabled' = 'true')", COMPACT, EXPIRE)
    goes_on(hands.deployment)
    assert len(hands.snapshots()) == 2, "Spark's, and the one of the round after it"
    long_ago = SystemClock().now_us() / 1e6 - SEVERAL_DAYS_S
    for path in (hands.deployment.data / "archive").rglob("*.*"):
        os.utime(path, (long_ago, long_ago))
    assert hands.ask(ORPHANS), "Spark deletes what no snapshot names, of ours too"
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


# external rollback: the topic halts


def test_a_rollback_to_a_snapshot_halts_until_it_is_undone(hands: Hands) -> None:
    (first, _), (second, _) = hands.snapshots()
    hands.do(f"CALL system.rollback_to_snapshot('shop.clicks', {first})")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "halted",
        ["invalid", "unknown"],
        [("rolled-back", "clicks")],
    )
    assert found.partitions[0]["missing"] == [[5, 9]]
    hands.do(f"CALL system.set_current_snapshot('shop.clicks', {second})")
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


def test_a_rollback_to_a_time_stays_if_an_operator_says_so(hands: Hands) -> None:
    _, (_, second) = hands.snapshots()
    hands.do(f"CALL system.rollback_to_timestamp('shop.clicks', TIMESTAMP '{second}')")
    found = aftermath(hands.deployment)
    assert (found.state, found.findings) == ("halted", [("rolled-back", "clicks")])
    report = reconciled(hands.deployment, "everything", "clicks")
    assert (left(report), fixed(report)) == ([], [("rolled-back", "clicks")])
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}, "what was missing is archived again, each record once"


def test_a_rollback_that_a_compaction_hides_halts_as_well(hands: Hands) -> None:
    first, _ = hands.snapshots()[0]
    hands.do(f"CALL system.set_current_snapshot('shop.clicks', {first})", COMPACT)
    found = aftermath(hands.deployment)
    assert (found.state, found.findings) == ("halted", [("rolled-back", "clicks")])
    assert fixed(reconciled(hands.deployment, "everything", "clicks")) == [("rolled-back", "clicks")]
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


# the table is renamed, dropped or replaced: the topic halts


def test_a_renamed_table_halts_until_it_has_its_name_again(hands: Hands) -> None:
    hands.do("ALTER TABLE shop.clicks RENAME TO shop.elsewhere")
    found = aftermath(hands.deployment)
    assert (found.state, found.findings) == ("halted", [("table-missing", "clicks")])
    assert set(found.verdicts) == {"invalid"}
    assert hands.ask("SHOW TABLES IN shop") == [["shop", name, False] for name in ("elsewhere", "orders")], (
        "it is not made again"
    )
    hands.do("ALTER TABLE shop.elsewhere RENAME TO shop.clicks")
    goes_on(hands.deployment)


def test_a_dropped_table_halts_until_it_is_registered_again(hands: Hands) -> None:
    newest = metadata_location(hands.deployment)
    hands.do("DROP TABLE shop.clicks")
    found = aftermath(hands.deployment)
    assert (found.state, found.findings) == ("halted", [("table-missing", "clicks")])
    hands.do(f"CALL system.register_table('shop.clicks', '{newest}')")
    goes_on(hands.deployment)


def test_a_table_made_again_in_its_place_halts(hands: Hands) -> None:
    hands.do("CREATE OR REPLACE TABLE shop.clicks USING iceberg AS SELECT * FROM shop.clicks")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts) == ("halted", ["valid", "valid"]), (
        "the rows are the same; the table is not laid out as ours"
    )
    assert found.findings == [("spec-changed", "clicks"), ("foreign-rows", "clicks")]
    hands.do("CREATE TABLE shop.kept USING iceberg AS SELECT * FROM shop.clicks", "DROP TABLE shop.clicks")
    hands.do("ALTER TABLE shop.kept RENAME TO shop.clicks")
    found = aftermath(hands.deployment)
    assert (found.state, found.findings) == ("halted", [("table-replaced", "clicks")])
    assert set(found.verdicts) == {"invalid"}


# external deletes, appends or updates of rows: the topic continues


def test_deleted_rows_are_removed_ones_and_do_not_come_back(hands: Hands) -> None:
    hands.do(f"DELETE FROM shop.clicks WHERE {ONE_ROW}")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.removed) == ("archived", ["valid", "valid"], {0: [[3, 4]]})
    assert found.findings == [("rows-removed", "clicks")]
    hands.do("TRUNCATE TABLE shop.clicks")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.removed) == (
        "archived",
        ["valid", "valid"],
        {0: [[0, 10]], 1: [[0, 3]]},
    )
    assert found.findings == [("rows-removed", "clicks")] * 2
    assert hands.rows() == {0: (1, 1)}


def test_the_newest_rows_may_go_with_all_snapshots_but_the_one_that_removed_them(hands: Hands) -> None:
    """The bounds of the files end below our watermark, and the snapshot that is left names ours as its
    parent. This is not so after a compaction."""
    hands.do("ALTER TABLE shop.clicks SET TBLPROPERTIES ('gc.enabled' = 'true')")
    hands.do("DELETE FROM shop.clicks WHERE kafka.partition = 1", EXPIRE)
    assert len(hands.snapshots()) == 1
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.removed) == ("archived", ["valid", "valid"], {1: [[0, 3]]})
    assert found.findings == [("rows-removed", "clicks")]
    hands.do("DELETE FROM shop.clicks WHERE kafka.offset = 9", COMPACT, EXPIRE)
    found = aftermath(hands.deployment)
    assert (found.state, found.findings) == ("halted", [("evidence-doubted", "clicks")])
    assert fixed(reconciled(hands.deployment, "everything", "clicks")) == [("evidence-doubted", "clicks")]
    goes_on(hands.deployment)
    assert hands.rows() == {0: (12, 12), 1: (3, 3)}, (
        "what was removed from the ends is there again, as the finding says"
    )


def test_rows_behind_delete_files_are_reported_by_the_deep_audit(
    hands: Hands,
    spark_session: SparkSession,
) -> None:
    hands.do(
        "ALTER TABLE shop.clicks SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read')"
    )
    hands.do(f"DELETE FROM shop.clicks WHERE {ONE_ROW}")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts) == ("archived", ["unknown", "unknown"])
    assert found.findings == [("rows-removed", "clicks")]
    hands.do("UPDATE shop.clicks SET value = NULL WHERE kafka.partition = 0 AND kafka.offset = 6")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts) == ("archived", ["unknown", "unknown"]), (
        "the old version is still in a data file, and hidden"
    )
    assert found.findings == [("foreign-rows", "clicks"), ("rows-removed", "clicks")]
    done = hands.deployment.cli("audit", "--deep", "--topic", "clicks", "--output", "json")
    by_rows = {
        item["partition"]: (item["verdict"], item["removed"], item["altered"], item["rows"])
        for item in done.json()["partitions"]
    }
    assert by_rows == {0: ("invalid", [[3, 4]], [[6, 7]], 10), 1: ("valid", [], [], 3)}
    hands.do(COMPACT)
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.removed) == ("archived", ["valid", "valid"], {0: [[3, 4]]}), (
        "no data file has it now"
    )
    assert found.findings == [("foreign-rows", "clicks"), ("rows-removed", "clicks")]
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


def test_rows_of_their_own_are_a_finding_until_they_are_taken_out(hands: Hands) -> None:
    """The table requires a partition and an offset of every row, so the audit finds each such row where none
    should be."""
    hands.do(INSERTED.format(partition=9, offset=0), INSERTED.format(partition=0, offset=1))
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts) == ("archived", ["invalid", "valid", "invalid"])
    assert found.partitions[0]["doubled"] == [[1, 2]]
    assert found.findings == [("overlap", "clicks"), ("foreign-rows", "clicks"), ("foreign-rows", "clicks")]
    hands.do("DELETE FROM shop.clicks WHERE kafka.batch_start = 4711")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts) == ("archived", ["valid", "valid"]), found.partitions
    assert sorted(found.findings) == [*[("foreign-rows", "clicks")] * 2, ("rows-removed", "clicks")], (
        "both stay on record"
    )


def test_an_update_is_a_finding_and_a_note_of_the_fast_audit(hands: Hands) -> None:
    """The fast audit proves offsets. `test_foreign_spark_forgeries.py` has the deep audit, which compares the
    content."""
    hands.do(f"UPDATE shop.clicks SET value = NULL WHERE {ONE_ROW}")
    (snapshot_id, _) = hands.snapshots()[-1]
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "archived",
        ["valid", "valid"],
        [("foreign-rows", "clicks")],
    )
    assert f"rows were rewritten by snapshot {snapshot_id}" in found.partitions[0]["why"]
    assert "`archiver audit --deep` compares their content" in found.partitions[0]["why"]
    assert found.partitions[1]["why"] is None


# partition fields, format, columns


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (
            "REPLACE PARTITION FIELD ingest_day WITH hours(kafka.ingest_timestamp) AS ingest_hour",
            "REPLACE PARTITION FIELD ingest_hour WITH days(kafka.ingest_timestamp) AS ingest_day",
        ),
        ("ADD PARTITION FIELD bucket(4, kafka.offset)", "DROP PARTITION FIELD bucket(4, kafka.offset)"),
        ("DROP PARTITION FIELD ingest_day", "ADD PARTITION FIELD days(kafka.ingest_timestamp) AS ingest_day"),
    ],
    ids=["other granularity", "another field", "no field"],
)
def test_another_partition_spec_halts_until_it_is_undone(hands: Hands, change: str, undo: str) -> None:
    hands.do(f"ALTER TABLE shop.clicks {change}")
    if "DROP" in change:
        hands.do(COMPACT)  # its files have that spec
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "halted",
        ["valid", "valid"],
        [("spec-changed", "clicks")],
    )
    hands.do(f"ALTER TABLE shop.clicks {undo}")
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


def test_spark_reads_and_compacts_a_table_whose_spec_the_archiver_changed(
    hands: Hands,
    spark_session: SparkSession,
) -> None:
    partition_by(hands.deployment, "hour")
    goes_on(hands.deployment)
    assert hands.ask("SELECT spec_id, count(*) FROM shop.clicks.files GROUP BY 1 ORDER BY 1") == [
        [0, 3],
        [1, 1],
    ]
    one = "kafka.ingest_timestamp = (SELECT max(kafka.ingest_timestamp) FROM shop.clicks)"
    assert hands.ask(f"SELECT kafka.offset FROM shop.clicks WHERE {one}") == [[9]]
    done = hands.deployment.cli("audit", "--deep", "--topic", "clicks", "--output", "json")
    assert (done.code, {item["proof"] for item in done.json()["partitions"]}) == (0, {"rows"}), done.out
    hands.do(COMPACT)
    assert hands.ask("SELECT DISTINCT spec_id FROM shop.clicks.files") == [[1]], "by the spec in force"
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


def test_a_spec_that_spark_changed_is_gone_on_with_if_the_configuration_follows(hands: Hands) -> None:
    hands.do(
        "ALTER TABLE shop.clicks REPLACE PARTITION FIELD ingest_day WITH hours(kafka.ingest_timestamp) "
        "AS ingest_hour"
    )
    assert aftermath(hands.deployment).state == "halted"
    partition_by(hands.deployment, "hour")
    goes_on(hands.deployment)
    assert hands.ask("SELECT spec_id, count(*) FROM shop.clicks.files GROUP BY 1 ORDER BY 1") == [
        [0, 3],
        [1, 1],
    ]
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


def test_another_format_halts(hands: Hands) -> None:
    hands.do("ALTER TABLE shop.clicks SET TBLPROPERTIES ('format-version' = '3')")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "halted",
        ["valid", "valid"],
        [("format-changed", "clicks")],
    )
    hands.do(f"DELETE FROM shop.clicks WHERE {ONE_ROW}", COMPACT)
    assert aftermath(hands.deployment).findings == [("format-changed", "clicks"), ("rows-removed", "clicks")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DROP COLUMN headers", "has no column headers (field id"),
        ("ALTER COLUMN kafka.partition TYPE bigint", "column kafka.partition of the table has type long"),
    ],
)
def test_a_column_of_ours_that_changes_halts(hands: Hands, change: str, why: str) -> None:
    hands.do(f"ALTER TABLE shop.clicks {change}")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "halted",
        ["valid", "valid"],
        [("schema-drift", "clicks")],
    )
    assert why in found.why


def test_what_is_not_ours_to_say_is_carried_on_from(hands: Hands) -> None:
    """Other engines' own columns, names, comments and locations, order, distribution, properties, branches
    and tags."""
    hands.do(
        "ALTER TABLE shop.clicks ADD COLUMN mine string",
        "ALTER TABLE shop.clicks RENAME COLUMN value TO payload",
        "ALTER TABLE shop.clicks ALTER COLUMN payload COMMENT 'what was clicked'",
        "ALTER TABLE shop.clicks ALTER COLUMN payload FIRST",
        "ALTER TABLE shop.clicks WRITE ORDERED BY kafka.offset",
        "ALTER TABLE shop.clicks SET TBLPROPERTIES ('theirs' = 'yes')",
        "ALTER TABLE shop.clicks CREATE TAG yesterday",
        "ALTER TABLE shop.clicks CREATE BRANCH theirs",
        "INSERT INTO shop.clicks.branch_theirs SELECT * FROM shop.clicks",
    )
    goes_on(hands.deployment)
    hands.do(f"UPDATE shop.clicks SET mine = 'noted' WHERE {ONE_ROW}")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "archived",
        ["valid", "valid"],
        [("foreign-rows", "clicks")],
    )
    assert hands.ask("SELECT kafka.offset FROM shop.clicks WHERE mine = 'noted'") == [[3]]
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}


# what happens to the topic itself, and to its objects


def test_a_topic_made_again_halts_until_it_has_a_table_of_its_own(hands: Hands) -> None:
    deployment = hands.deployment
    document = deployment.document()
    deployment.write(document | {"topics": [item for item in document["topics"] if item["name"] != "clicks"]})
    assert deployment.cli("topics", "delete", "clicks", "--yes").code == 0
    deployment.write(document)
    assert deployment.cli("topics", "create", "clicks").code == 0
    found = aftermath(deployment)
    assert (found.state, found.verdicts) == ("halted", ["unknown", "unknown"]), (
        "nothing of the new topic is archived yet"
    )
    assert found.findings == [("topic-recreated-on-old-table", "clicks")]
    assert hands.rows() == {0: (9, 9), 1: (3, 3)}, "the rows of the old topic are left alone"
    document["topics"][1]["archive"]["table"] = "shop.clicks_again"
    deployment.write(document)
    goes_on(deployment)
    assert hands.ask("SELECT kafka.offset FROM shop.clicks_again ORDER BY 1") == [[0], [1]]
    assert hands.rows() == {0: (9, 9), 1: (3, 3)}


def test_partitions_are_added_to_a_topic_and_a_configuration_with_fewer_changes_nothing(
    hands: Hands,
) -> None:
    deployment = hands.deployment
    document = deployment.document()
    document["topics"][1]["partitions"] = 3
    deployment.write(document)
    found = aftermath(deployment)
    assert (found.state, found.verdicts, found.findings) == ("archived", ["valid"] * 3, [])
    deployment.write(deployment.document())
    goes_on(deployment, partitions=3)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}
    with Driver(deployment) as driver:
        driver.send("clicks", [b"in the new one"], 2)
        driver.archive()
        assert hands.rows() == {0: (11, 11), 1: (3, 3), 2: (1, 1)}
        driver.check_complete("clicks", "orders")


def test_a_data_file_deleted_by_hand_is_named_and_may_come_back(hands: Hands) -> None:
    ((named,),) = hands.ask(
        "SELECT min(file_path) FROM shop.clicks.files WHERE file_path LIKE '%/partition=00000/%'"
    )
    path = Path(str(named).removeprefix("file://"))
    content = path.read_bytes()
    path.unlink()
    assert "FileNotFoundException" in hands.refused("SELECT max(value.__raw__) FROM shop.clicks")
    found = aftermath(hands.deployment)
    assert (found.state, found.verdicts, found.findings) == (
        "archived",
        ["invalid", "valid"],
        [("dangling-reference", "clicks")],
    )
    assert found.partitions[0]["missing"] == [[0, 5]]
    assert path.name in found.partitions[0]["why"]
    path.write_bytes(content)
    goes_on(hands.deployment)
    assert hands.rows() == {0: (11, 11), 1: (3, 3)}
