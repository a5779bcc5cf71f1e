"""`partition_by` changes for an existing table: real log, ledger, store and SQL catalog, refinement in this
process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.table_layout import PARTITION_BY
from archiver.objects.paths import parse_archive_key
from archiver.runtime import failpoints
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.builders.rebuilding import lose_catalog, lose_metadata
from tests.support.builders.reconciling import archived, control_tail, left, metadata_location, reconciled

KILL_TIMEOUT_S = 180
SENT = {0: 9, 1: 3}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """`clicks` by day, with 9 records in partition 0 and 3 in partition 1."""
    return archived(tmp_path / "d", failpoints_asked=True)


def partition_by(deployment: Deployment, granularity: str) -> None:
    document = deployment.document()
    document["topics"][1]["archive"]["partition_by"] = [granularity]
    deployment.write(document)


def send(driver: Driver, count: int = 2) -> None:
    driver.send("clicks", [b"more"] * count, 0)


def filed(deployment: Deployment) -> dict[int, tuple[str, int]]:
    """First offset of partition 0's files → granularity of the file's name, and the spec under which the
    table has it."""
    found: dict[int, tuple[str, int]] = {}
    with catalog_table(deployment, "shop.clicks") as table:
        names = {
            number: spec.fields[0].name.removeprefix("ingest_") for number, spec in table.specs().items()
        }
        for task in table.scan().plan_files():
            key = parse_archive_key(task.file.file_path[task.file.file_path.index("archive/") :])
            assert key is not None
            assert names[task.file.spec_id] == key.granularity, (
                "a file is filed under the granularity that it was written for"
            )
            assert task.file.partition[0] == key.partition_value
            if key.partition == 0:
                found[key.base] = (key.granularity, task.file.spec_id)
    return found


def check(deployment: Deployment, sent: int) -> None:
    """Complete and valid, for the audit, for readers of the stream and of the table; and reconcile reports
    nothing."""
    with Driver(deployment) as driver:
        driver.check_complete("clicks", "orders")
        assert {number: len(records) for number, records in driver.records("clicks").items()} == SENT | {
            0: sent
        }
    assert left(reconciled(deployment)) == []
    with catalog_table(deployment, "shop.clicks") as table:
        rows: list[Any] = table.scan().to_arrow()["kafka"].to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (p, o) for p, end in (SENT | {0: sent}).items() for o in range(end)
    ]


def test_new_archives_go_to_the_new_partitions_and_old_ones_stay(deployment: Deployment) -> None:
    for number, granularity in enumerate(("hour", "month", "day"), 1):
        partition_by(deployment, granularity)
        with Driver(deployment) as driver:
            send(driver)
            report = driver.archive()
            assert (report.topics["clicks"].state, report.topics["orders"].state) == ("archived", "idle")
        check(deployment, 9 + 2 * number)
    assert filed(deployment) == {
        0: ("day", 0),
        5: ("day", 0),
        9: ("hour", 1),
        11: ("month", 2),
        13: ("day", 0),
    }
    with catalog_table(deployment, "shop.clicks") as table:
        assert table.properties[PARTITION_BY] == "day"


def test_the_catalog_is_asked_once(deployment: Deployment) -> None:
    partition_by(deployment, "hour")
    with Driver(deployment) as driver:
        driver.archive()
        before = metadata_location(deployment)
        assert driver.archive().topics["clicks"].state == "idle"
    assert metadata_location(deployment) == before


def test_what_waits_is_committed_under_the_spec_it_was_written_for(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        send(driver)
        failpoints.arm("table.swap.before=error")
        assert driver.archive().topics["clicks"].state == "deferred"
    partition_by(deployment, "hour")
    with Driver(deployment) as driver:
        send(driver)
        assert driver.archive().topics["clicks"].state == "archived"
    check(deployment, 13)
    assert filed(deployment) == {0: ("day", 0), 5: ("day", 0), 9: ("day", 0), 11: ("hour", 1)}


@pytest.mark.parametrize("point", ["table.evolve.before", "table.evolve.after"])
@pytest.mark.parametrize("action", ["error", "unknown"])
def test_a_change_that_failed_is_gone_on_with(deployment: Deployment, point: str, action: str) -> None:
    partition_by(deployment, "hour")
    with Driver(deployment) as driver:
        send(driver)
        failpoints.arm(f"{point}={action}")
        driver.archive()
        failpoints.arm("")
    with Driver(deployment) as driver:
        driver.archive()
    check(deployment, 11)
    assert filed(deployment)[9] == ("hour", 1)


@pytest.mark.parametrize(
    "point", ["table.evolve.before", "table.evolve.after", "written.append.before", "table.swap.before"]
)
def test_killed_at_any_step_the_next_process_goes_on(deployment: Deployment, point: str) -> None:
    partition_by(deployment, "hour")
    with Driver(deployment) as driver:
        send(driver)
    program = (
        "import sys; from pathlib import Path; from archiver.runtime import failpoints\n"
        "from tests.support.builders.deployment import Deployment\n"
        "from tests.support.builders.driver import Driver\n"
        "class Same(Deployment):\n"
        "    def __post_init__(self): pass\n"
        "driver = Driver(Same(Path(sys.argv[1]), True)); failpoints.arm(sys.argv[2]); driver.archive()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(deployment.root), f"{point}=kill"],
        capture_output=True,
        timeout=KILL_TIMEOUT_S,
        cwd=ROOT,
        env=deployment.environ(),
        check=False,
    )
    assert done.returncode == -9, done.stderr.decode()
    with Driver(deployment) as driver:
        driver.archive()
    check(deployment, 11)
    assert filed(deployment)[9] == ("hour", 1)


def test_another_writers_change_still_halts(deployment: Deployment) -> None:
    """This includes a change that the archiver itself made once, in a table that it has changed since."""
    partition_by(deployment, "hour")
    with Driver(deployment) as driver:
        send(driver)
        driver.archive()
    with catalog_table(deployment, "shop.clicks") as table, table.update_spec() as update:
        update.remove_field("ingest_hour")
        update.add_field("kafka.ingest_timestamp", "day", "ingest_day")
    with Driver(deployment) as driver:
        send(driver)
        report = driver.archive().topics["clicks"]
        assert (report.state, "is partitioned by day, the configuration says hour" in (report.why or "")) == (
            "halted",
            True,
        ), report
    assert left(reconciled(deployment)) == [("spec-changed", "clicks")]


def test_another_writers_change_is_taken_over_if_the_configuration_follows(deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.clicks") as table, table.update_spec() as update:
        update.remove_field("ingest_day")
        update.add_field("kafka.ingest_timestamp", "hour", "ingest_hour")
    with Driver(deployment) as driver:
        send(driver)
        assert driver.archive().topics["clicks"].state == "halted"
    partition_by(deployment, "hour")
    with Driver(deployment) as driver:
        assert driver.archive().topics["clicks"].state == "archived"
    check(deployment, 11)
    partition_by(deployment, "day")
    with Driver(deployment) as driver:
        send(driver)
        assert driver.archive().topics["clicks"].state == "archived", (
            "from then on it is the archiver's to change"
        )
    check(deployment, 13)
    assert filed(deployment) == {0: ("day", 0), 5: ("day", 0), 9: ("hour", 1), 11: ("day", 0)}


def test_until_the_next_round_nothing_is_amiss(deployment: Deployment) -> None:
    partition_by(deployment, "hour")
    before = metadata_location(deployment), control_tail(deployment)
    check(deployment, 9)
    assert (metadata_location(deployment), control_tail(deployment)) == before


@pytest.mark.parametrize("bucket_only", [False, True], ids=["with the ledger", "from the bucket"])
def test_a_table_of_several_specs_is_made_again(deployment: Deployment, bucket_only: bool) -> None:
    for granularity in ("hour", "day", "month"):
        partition_by(deployment, granularity)
        with Driver(deployment) as driver:
            send(driver)
            driver.archive()
    partition_by(deployment, "hour")
    granularities = {offset: name for offset, (name, _) in filed(deployment).items()}
    lose_catalog(deployment)
    if bucket_only:
        lose_metadata(deployment)
    done = deployment.cli("reconcile", "--rebuild", "--output", "json")
    assert done.code == 0, (done.out, done.err)
    assert {offset: name for offset, (name, _) in filed(deployment).items()} == granularities
    with catalog_table(deployment, "shop.clicks") as table:
        assert table.spec().fields[0].name == "ingest_hour", "the configuration's"
        assert len(table.scan().to_arrow()) == 18
    if not bucket_only:
        check(deployment, 15)
