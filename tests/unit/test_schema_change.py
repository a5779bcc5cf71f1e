"""What `schema_change` allows, and how a change is reported: in the halt, the log, the status, the metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from archiver.app.status_document import daemon_document
from archiver.config.topics import TopicSettings
from archiver.publish.report import ArchiveReport
from archiver.refine.prepare_topic import FIELDS_SHOWN, SchemaChange, change_of, check_allowed
from archiver.runtime.errors import TopicHalted
from archiver.schema.evolution.evolve import Policy, is_allowed
from archiver.schema.evolution.state import Decision, TopicSchema, decide
from archiver.schema.protobuf.descriptors import Envelope, Source
from archiver.status.advice import advice, verdict
from archiver.status.journal import SCHEMA_CHANGE_KEPT_S, Journal
from archiver.status.mapping import plan_of
from tests.support.schema.protos import F, field, file_of, source

POLICIES: tuple[Policy, ...] = ("evolve", "compatible", "refuse")
NOW_US = 1_800_000_000_000_000
FIRST = (("price", 1, F.TYPE_DOUBLE), ("count", 2, F.TYPE_UINT32), ("city", 3, F.TYPE_STRING))
ADDED = (*FIRST, ("note", 4, F.TYPE_STRING))
OTHER = (
    ("price", 1, F.TYPE_STRING),
    ("count", 2, F.TYPE_STRING),
    ("city", 3, F.TYPE_STRING),
    ("note", 4, F.TYPE_STRING),
)


def sale(fields: Any, **more: Any) -> Source:
    file = file_of()
    message = file.message_type.add(name="Sale")
    for name, number, kind in fields:
        field(message, name, number, kind)
    return replace(source(file, "Sale"), **more)


def first() -> list[TopicSchema]:
    return [decide("sales", (), None, sale(FIRST)).schema]


def decided(one: Source | None) -> Decision:
    return decide("sales", first(), None, one)


def settings(policy: Policy) -> TopicSettings:
    return TopicSettings(name="sales", partitions=1, schema_change=policy)


def changed(one: Source | None) -> SchemaChange:
    change = change_of("sales", first(), decided(one))
    assert change is not None
    return change


def refused(policy: Policy, one: Source | None) -> str | None:
    try:
        check_allowed(settings(policy), changed(one))
    except TopicHalted as error:
        return error.why
    return None


@pytest.mark.parametrize(
    ("newer", "allowing"),
    [
        (sale(ADDED), {"evolve", "compatible"}),
        (sale(FIRST[:2]), {"evolve", "compatible"}),
        (sale(OTHER), {"evolve"}),
        (None, {"evolve", "compatible"}),
        (sale(FIRST, envelope=Envelope(((7, (0,)),))), {"evolve", "compatible", "refuse"}),
        (sale(ADDED, envelope=Envelope(((7, (0,)),))), {"evolve", "compatible"}),
    ],
)
def test_what_each_policy_allows(newer: Source | None, allowing: set[Policy]) -> None:
    assert {policy for policy in POLICIES if refused(policy, newer) is None} == allowing
    assert {policy for policy in POLICIES if is_allowed(policy, decided(newer).changes)} == allowing
    assert {
        policy for policy in POLICIES if plan_of("sales", first(), None, newer, policy).allowed
    } == allowing


@pytest.mark.parametrize("policy", POLICIES)
def test_a_first_version_and_no_change_are_always_allowed(policy: Policy) -> None:
    assert change_of("sales", (), decide("sales", (), None, sale(FIRST))) is None
    assert change_of("sales", first(), decided(sale(FIRST))) is None
    check_allowed(settings(policy), None)
    assert plan_of("sales", (), None, sale(FIRST), policy).allowed


def test_the_halt_names_the_fields_and_the_way_on() -> None:
    why = refused("compatible", sale(OTHER)) or ""
    assert (
        "schema 1 → 2, 2 incompatible: value.price (double → string, now in value.price_v2), "
        "value.count (long → string" in why
    )
    assert "`archiver schema plan sales`" in why
    assert "Accept it with schema_change: evolve and a reload" in why
    assert "none is lost" in why
    why = refused("refuse", sale(ADDED)) or ""
    assert "value.note (added)" in why
    assert "Accept it with schema_change: compatible and a reload" in why


def test_a_line_is_bounded() -> None:
    wide = [(f"{'f' * 400}{number}", number, F.TYPE_DOUBLE) for number in range(1, 60)]
    history = [decide("sales", (), None, sale(wide)).schema]
    other = [(name, number, F.TYPE_STRING) for name, number, _ in wide]
    change = change_of("sales", history, decide("sales", history, None, sale(other)))
    assert change is not None
    assert "59 incompatible" in change.line and f"and {59 - FIELDS_SHOWN} more" in change.line
    assert len(change.line) < 3000
    assert len(change.to_json()["incompatible_fields"]) == FIELDS_SHOWN


def journal_of(change: SchemaChange, now_us: int = NOW_US) -> Journal:
    journal = Journal(10)
    journal.becomes("serving")
    report = ArchiveReport()
    report.of("sales").schema_change = change.to_json()
    journal.schemas_changed(report, now_us)
    return journal


def test_the_page_and_the_status_report_an_incompatible_change() -> None:
    journal = journal_of(changed(sale(OTHER)))
    found = advice(None, journal, NOW_US, 10.0)
    (one,) = found
    assert (one.severity, one.kind, one.topic) == ("watch", "schema", "sales")
    assert "from version 1 to 2 with 2 incompatible changes: value.price, value.count" in one.what
    assert "All is well" not in verdict(found, "serving")
    assert "topic sales has a schema with 2 incompatible changes" in verdict(found, "serving")
    assert [
        line
        for line in daemon_document("127.0.0.1:1", journal)["attention"]
        if "archiver schema show sales" in line
    ]


def test_a_compatible_change_is_no_reason_to_look() -> None:
    assert advice(None, journal_of(changed(sale(ADDED))), NOW_US, 10.0) == []


def test_a_change_is_shown_for_a_day() -> None:
    journal = journal_of(changed(sale(OTHER)))
    day_us = int(SCHEMA_CHANGE_KEPT_S * 1e6)
    journal.schemas_changed(ArchiveReport(), NOW_US + day_us - 1)
    assert len(journal.schema_changes()) == 1
    journal.schemas_changed(ArchiveReport(), NOW_US + day_us)
    assert journal.schema_changes() == []
