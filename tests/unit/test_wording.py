"""Messages use the singular for one thing, and `status` prints a limited number of partitions."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import archiver
from archiver.cli import output
from archiver.cli.app import run
from archiver.cli.audit import print_audit
from archiver.cli.dlq import _print_list
from archiver.cli.produce import _reached
from archiver.cli.status import PARTITIONS_SHOWN, _print_partitions
from archiver.cli.topics import _lost
from archiver.daemon.operations import summarize_archiving, summarize_audit
from archiver.demo.report import view_sql
from archiver.publish.report import ArchiveReport, TopicReport
from archiver.runtime.exit_codes import USAGE
from archiver.runtime.text import counted, moment

PACKAGE = Path(archiver.__file__).parent
ROOMS = ("cli", "daemon", "demo", "query", "status", "web")
"""The packages that write texts for users in normal operation."""
NOUNS = re.compile(
    r" "
    r"(topics|partitions|offsets|records|rows|files|archives|objects|events|segments|entries|attempts|tries|times|columns|samples|problems"
    r"|members|cycles|snapshots|sources|requests|findings|catalogs|batches|commits)\b"
)


def plurals(source: str) -> list[str]:
    """Every number in an f-string of `source` that stands before a plural, except constants and values of
    settings."""
    found = []
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        for before, value, after in zip([None, *text.values], text.values, text.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            setting = isinstance(before, ast.Constant) and str(before.value).endswith("= ")
            noun = NOUNS.match(str(after.value))
            number = ast.unparse(value.value)
            if noun is not None and not setting and not re.fullmatch("[A-Z_]+", number):
                found.append(f"{{{number}}} {noun[1]}")
    return found


def test_words_are_counted() -> None:
    assert [counted(number, "record waits", "records wait") for number in (0, 1, 12345)] == [
        "0 records wait",
        "1 record waits",
        "12,345 records wait",
    ]
    assert (counted(1, "file"), counted(2, "file")) == ("1 file", "2 files")


def test_each_number_before_a_noun_goes_through_counted() -> None:
    sources = [path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
    assert len(sources) > 50
    assert [
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in sources
        for text in plurals(path.read_text(encoding="utf-8"))
    ] == []


def test_an_uncounted_plural_is_found() -> None:
    assert plurals('f"{len(topics)} topics"') == ["{len(topics)} topics"]
    assert plurals('f"{lost:,} offsets are lost"') == ["{lost} offsets"]
    assert (
        plurals("f\"{counted(lost, 'offset')} of {FILES_MAX} files, http.records_max = {n} records\"") == []
    )


def test_moments_are_cut_to_the_second() -> None:
    assert (moment(0), moment(1_767_323_045_999_999)) == (
        "1970-01-01 00:00:00 UTC",
        "2026-01-02 03:04:05 UTC",
    )


def test_one_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    report = ArchiveReport(
        rounds=1, topics={"a": TopicReport("a", "archived", archives=1, rows=1, gaps=1, waiting=1)}
    )
    reported = summarize_archiving(report, list(report.topics.values())).line
    assert (
        reported
        == "1 record of 1 topic archived in 1 file (0.000 MB), 1 offset of aborted transactions skipped"
        ", 1 record waits"
    )
    partition = {"topic": "a", "partition": 0, "verdict": "valid", "why": "", "rows": 1}
    assert (
        summarize_audit({"verdict": "valid", "partitions": [partition]}).line == "valid: 1 partition, 1 row"
    )
    assert _reached(Counter(ok=1)) == "1 record was read and acknowledged"
    assert _reached(Counter(unknown=1)) == "1 record was read, 0 of it is stored"
    bounds = {"start": 0, "watermark": 0, "stable": 1, "next": 1, "gaps": [], "proof": "none"}
    print_audit({"verdict": "valid", "partitions": [partition | bounds]}, {"a"})
    assert "1 stable record is not archived yet" in capsys.readouterr().out
    print_audit({"verdict": "valid", "partitions": [partition | bounds]}, {"b"})
    reported = capsys.readouterr().out
    assert "1 stable record is in topics that this configuration does not archive" in reported
    assert "yet" not in reported


def test_a_deletion_that_loses_nothing_says_nothing_about_losses() -> None:
    assert [_lost(offsets, "held") for offsets in (0, 1, 2)] == [
        None,
        "1 offset that no archive held is lost",
        "2 offsets that no archive held are lost",
    ]


def test_status_shows_the_partitions_that_are_behind_the_oldest_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def partition(number: int, records: int, seconds: float) -> dict[str, Any]:
        lag = {"offset": 100 - records, "lag_records": records, "lag_seconds": seconds}
        stages = {
            "stable": {"offset": 100, "lag_records": 0, "lag_seconds": 0.0},
            "archived": lag,
            "committed": lag,
        }
        return {
            "partition": number,
            "next": 100,
            "stages": stages,
            "reason": "not due yet" if records else None,
        }

    _print_partitions([{"topic": "calm", "partitions": [partition(0, 0, 0.0)]}])
    assert capsys.readouterr().out == ""
    many = [partition(number, 1 + number, 60.0 * (1 + number)) for number in range(PARTITIONS_SHOWN + 1)]
    _print_partitions([{"topic": "orders", "partitions": [*many, partition(99, 0, 0.0)]}])
    reported = capsys.readouterr().out
    lines = [line for line in reported.splitlines() if "orders" in line]
    assert len(lines) == PARTITIONS_SHOWN
    assert [cell.strip() for cell in lines[0].strip("│ ").split("│")] == [
        "orders",
        str(PARTITIONS_SHOWN),
        "100",
        "100",
        "49 (51 behind, 51 min)",
        "49 (51 behind, 51 min)",
        "not due yet",
    ]
    assert "and 1 more partition; --output json has all of them" in reported


def test_reasons_follow_below_a_table_that_has_no_room_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    due, other = "due: the next round archives it", "not due: 1 of 2 bytes"

    def printed(columns: int) -> list[str]:
        monkeypatch.setattr(output, "PIPE_COLUMNS", columns)
        rows = [("orders", number, "100") for number in range(4)]
        reasons = [due, other, due, ""]
        notes = [("orders, partition", str(number), reason) for number, reason in enumerate(reasons)]
        output.print_noted_table("behind", ("topic", "partition", "next"), rows, "why", notes)
        return capsys.readouterr().out.splitlines()

    assert (
        max(map(len, printed(160)))
        == len(printed(160)[1])
        == 1 + sum(width + 3 for width in (len("orders"), len("partition"), len("next"), len(due)))
    )
    assert len(printed(len(printed(160)[1]))) == len(printed(160))
    narrow = printed(len(printed(160)[1]) - 1)
    assert narrow[-2:] == [f"orders, partition 0, 2: {due}", f"orders, partition 1: {other}"]
    assert max(map(len, narrow)) < 60


def test_errors_of_undecoded_records_follow_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"topic": "t", "partition": 0, "side": "value", "cause": "malformed", "error": "no message"}
    records = [record | {"offset": number, "archive": f"{number // 2}.parquet"} for number in range(3)]
    _print_list({"records": records, "more": 0, "topics": []})
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "in 0.parquet:",
        "  t:0:0 value: no message",
        "  t:0:1 value: no message",
        "in 1.parquet:",
        "  t:0:2 value: no message",
    ]


def test_an_audit_of_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_audit({"verdict": "valid", "partitions": []}, set())
    assert capsys.readouterr().out.splitlines()[-1] == "verdict: valid: there is nothing to audit yet"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["status", "--output", "xml"], "'--output': 'xml' is not one of 'text', 'json'."),
        (["consume", "--topic", "t", "--max", "-1"], "'--max': it must be greater than or equal to 0"),
    ],
)
def test_a_wrong_option_is_explained_without_the_words_of_a_library(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == USAGE
    assert capsys.readouterr().err.splitlines()[0] == f"error: Invalid value for {why}"


def test_the_statement_of_the_demo_has_a_line_for_each_file() -> None:
    assert view_sql("flights", ["file:///a%20b.parquet", "s3://b/c.parquet"]).splitlines() == [
        'CREATE OR REPLACE VIEW "flights" AS SELECT unnest("value"), kafka FROM read_parquet([',
        "  '/a b.parquet',",
        "  's3://b/c.parquet'])",
    ]
