"""Is the auditor reliable? It finds nothing in a good history, and names damage of each kind correctly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.builders.deployment import ROOT
from tests.support.builders.spoiled_history import END, GAP, ROWS, SPOILINGS, History, Spoiling

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
DOCUMENTS = dict[str, dict[tuple[str, int], Any]]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, spark_session: SparkSession) -> DOCUMENTS:
    """The verdicts of both audits on every partition, before and after the damage."""
    history = History(tmp_path_factory.mktemp("history") / "d")
    found: DOCUMENTS = {}
    for when in ("good", "spoilt"):
        if when == "spoilt":
            history.spoil()
        for kind in ([], ["--deep"]):
            done = history.deployment.cli("audit", *kind, "--output", "json")
            partitions = {(item["topic"], item["partition"]): item for item in done.json()["partitions"]}
            found[f"{when} {'deep' if kind else 'fast'}"] = partitions
            verdicts = {item["verdict"] for item in partitions.values()}
            assert done.code == (1 if "invalid" in verdicts else 2 if "unknown" in verdicts else 0), done.err
    found["hidden"] = {("clicks", history.hidden_by): None}
    return found


@pytest.mark.parametrize("number", range(len(SPOILINGS)))
def test_the_good_history_is_valid_by_its_rows(documents: DOCUMENTS, number: int) -> None:
    found = documents["good deep"]["orders", number]
    assert (found["verdict"], found["why"], found["proof"]) == ("valid", None, "rows")
    assert (found["rows"], found["watermark"], found["gaps"]) == (30, END, [list(GAP)])
    assert not any(found[name] for name in ("missing", "doubled", "removed", "pending"))
    fast = documents["good fast"]["orders", number]
    assert {**fast, "proof": "rows"} == found, "both audits have one document"


@pytest.mark.parametrize("partition", [0, 1])
def test_archives_without_a_table_are_valid_by_their_rows(documents: DOCUMENTS, partition: int) -> None:
    found = documents["good deep"]["files", partition]
    assert (found["verdict"], found["why"], found["proof"], found["rows"]) == ("valid", None, "rows", 30)


def test_rows_that_another_writer_compacted_and_deleted(documents: DOCUMENTS) -> None:
    """The manifests do not show which rows are hidden; the rows do, and which snapshot removed them."""
    (_, snapshot_id), *_ = documents["hidden"]
    found = documents["good deep"]["clicks", 0]
    assert (found["verdict"], found["proof"], found["rows"]) == ("valid", "rows", 17)
    assert (found["removed"], found["missing"], found["pending"]) == ([[2, 4], [11, 12]], [], [[20, 30]])
    assert f"offsets 2 to 3, 11 were removed by external snapshot {snapshot_id}" in found["why"]
    assert documents["good fast"]["clicks", 0]["verdict"] == "unknown"


def test_what_retention_has_taken_is_not_missed(documents: DOCUMENTS) -> None:
    found = documents["good deep"]["aged", 0]
    assert (found["verdict"], found["why"], found["proof"]) == ("valid", None, "rows")
    assert (found["start"], found["watermark"], found["rows"], found["missing"], found["removed"]) == (
        ROWS,
        2 * ROWS,
        ROWS,
        [],
        [],
    )


@pytest.mark.parametrize(
    ("number", "one"),
    list(enumerate(SPOILINGS)),
    ids=lambda one: one.name if isinstance(one, Spoiling) else "",
)
def test_each_damage_is_reported_by_its_right_name(documents: DOCUMENTS, number: int, one: Spoiling) -> None:
    found = documents["spoilt deep"]["orders", number]
    assert found["verdict"] == one.verdict, found["why"]
    assert re.search(one.why, found["why"] or ""), found["why"]
    assert {
        name: found[name] for name in ("missing", "doubled", "removed", "pending") if found[name]
    } == one.lists
    assert documents["spoilt fast"]["orders", number]["verdict"] == one.fast, documents["spoilt fast"][
        "orders", number
    ]["why"]


def test_damage_to_one_topic_is_no_matter_of_the_others(documents: DOCUMENTS) -> None:
    for place, found in documents["spoilt deep"].items():
        if place[0] != "orders":
            assert found == documents["good deep"][place]


def test_the_manual_says_which_audit_sees_what() -> None:
    text = (Path(ROOT) / "docs" / "testing.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+?) \| (yes|no) \| (?:yes|no) \|", text, re.MULTILINE))
    wanted = {
        one.name: "yes" if one.fast == "invalid" else "no" for one in SPOILINGS if one.name != "nothing"
    }
    assert {name: seen for name, seen in rows.items() if name in wanted} == wanted
