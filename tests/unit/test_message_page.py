"""The page of one message says where it is in plain words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from archiver.status.explain import Facts, State, document_of, explain
from archiver.web.console import _template, ago, state_words
from intake.log.aborted import Aborted
from tests.support.process.pages import HOSTILE_TEXT, Seen
from tests.unit.test_explain import CASES, COMMITTED, HELD, INTAKE, PENDING, WAITING

NOW_US = 3_600_000_000
INTERNAL = ("shelf", "condemned", "untold", "watermark", "null", "log_index", "{", "behind_transaction")
"""Names of the document that mean nothing to a user."""


def page(facts: Facts) -> Seen:
    """The page of a message without its record."""
    document: dict[str, Any] = {"explain": document_of(explain(facts)), "record": None, "unreadable": None}
    return Seen(
        _template("message.html").render(
            document=document,
            asked={},
            path="/topics/orders/messages/0/5",
            cluster="test",
            now_us=NOW_US,
            refresh=None,
        )
    )


def text(facts: Facts) -> str:
    """Its text with single spaces."""
    return " ".join(page(facts).text.split())


def test_every_state_has_words() -> None:
    for state in get_args(State):
        severity, words = state_words(state)
        assert severity in ("ok", "note", "watch", "act")
        assert "_" not in words


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_every_state_is_shown_without_internal_names(case: tuple[Facts, str, int, str]) -> None:
    facts, state, *_ = case
    found = text(facts)
    assert state_words(state)[1] in found
    for word in INTERNAL:
        # A reason may have the name of a file that a test calls so.
        assert word not in found or word in explain(facts).why, word


def test_a_committed_message_names_file_archive_and_snapshot() -> None:
    found = text(replace(COMMITTED, intake=replace(INTAKE, shelf="history/h", condemned_us=4_000_000)))
    for part in (
        "row 3 of row group 0",
        "7 of the intake log, which is trimmed there; history/h has its data",
        "1970-01-01 00:00:01 UTC (59 min 59 s ago)",
        "marked for deletion 1970-01-01 00:00:04 UTC (59 min 56 s ago)",
        "offsets 0 to 9",
        "1970-01-01 00:00:05 UTC (59 min 55 s ago), written under epoch 1",
        "as of snapshot 42",
        "file:///d/archive/a1 row with this offset; the file came with snapshot 42",
        "by snapshot 42 (append), 1970-01-01 00:00:06 UTC",
        "below offset 10 to the table",
    ):
        assert part in found, part


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        (WAITING, ["It is not archived yet. Archives hold the offsets below 10.", "has it yet", "not due"]),
        (PENDING, ["Entry 9 of the control log holds it", "no data file of the table has it yet"]),
        (
            replace(WAITING, stable=12, transaction=HELD, own=True),
            ["The transaction that it belongs to", "1970-01-01 00:00:09 UTC (59 min 51 s ago)", "4 offsets"],
        ),
        (
            replace(WAITING, gap=True, aborted=Aborted("mine", 3, 1, 0, 8, 0, "too long")),
            ["The aborted transaction", "by entry 8 of the intake log: too long"],
        ),
        (replace(WAITING, kind="none", table=None), ["stays in intake files"]),
        (replace(WAITING, kind="unconfigured", table=None), ["not in the configuration"]),
        (replace(COMMITTED, kind="parquet", table=None), ["The topic has no table"]),
        (replace(COMMITTED, intake=replace(INTAKE, gone=True)), ["The file is deleted. It is no longer"]),
        (replace(WAITING, intake=replace(INTAKE, gone=True)), ["gone, and the record was not committed"]),
    ],
)
def test_a_message_that_is_not_further_says_why(facts: Facts, parts: list[str]) -> None:
    found = text(facts)
    for part in parts:
        assert part in found, part


def test_an_offset_without_a_record_has_no_places() -> None:
    for facts in (replace(WAITING, offset=20), replace(WAITING, gap=True, intake=None)):
        assert "Intake file" not in text(facts)


def test_hostile_names_are_text() -> None:
    seen = page(
        replace(
            COMMITTED,
            topic=HOSTILE_TEXT,
            intake=replace(INTAKE, key=HOSTILE_TEXT, damage=HOSTILE_TEXT),
            no_table=HOSTILE_TEXT,
        )
    )
    assert not set(seen.tags) & {"script", "img"}
    assert "\u202e" not in seen.text


def test_a_time_to_come_says_in() -> None:
    assert ago("1970-01-01T01:00:05.000000Z", NOW_US) == "1970-01-01 01:00:05 UTC (in 5 s)"
