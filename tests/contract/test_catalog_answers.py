"""How each response of a REST catalog is interpreted, request by request, against a real catalog.

The expectations are the table of docs/protocols/outcomes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.catalog.table_layout import table_properties
from archiver.catalog.tables import Prepared, SwapOutcome, TableView
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import CatalogAway, KeyExists, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds
from tests.contract.test_tables import one_file, prepared
from tests.contract.test_tables_evolve import with_column
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.table_catalogs import loaded
from tests.support.catalog.tables import CLUSTER_ID, IDENTIFIER, TOPIC_ID, schema_json, target_in
from tests.support.servers.http_faults import Fault, HttpFaults, Play

pytestmark = pytest.mark.spark  # needs Java

TIMEOUT_S = 1.5
NO, YES, UNKNOWN = SwapOutcome.CONFLICT, SwapOutcome.APPLIED, SwapOutcome.UNKNOWN

NOT_APPLIED: dict[Fault, SwapOutcome] = {
    **{
        Fault(Play.ANSWER_BEFORE, status): NO for status in (400, 403, 404, 405, 406, 409, 413, 422, 429, 501)
    },
    # pyiceberg asks for another token, and sends what was refused once more.
    **{Fault(Play.ANSWER_BEFORE, status): YES for status in (401, 419)},
    **{Fault(Play.ANSWER_BEFORE, status): UNKNOWN for status in (408, 418, 500, 502, 503, 504, 520)},
    **{Fault(play): UNKNOWN for play in (Play.RESET_BEFORE, Play.SILENT_BEFORE, Play.GARBAGE_BEFORE)},
}
APPLIED: dict[Fault, SwapOutcome] = {
    # The catalog refuses a repetition that a library or proxy sent in between: only a reload shows the
    # outcome.
    Fault(Play.ANSWER_AFTER, 409): NO,
    **{Fault(Play.ANSWER_AFTER, status): UNKNOWN for status in (408, 500, 502, 503, 504)},
    **{
        Fault(play): UNKNOWN
        for play in (Play.RESET_AFTER, Play.SILENT_AFTER, Play.GARBAGE_AFTER, Play.DRIP, Play.DRIP_HEADER)
    },
    Fault(Play.SLOW): YES,
}


@dataclass
class Rig:
    """A catalog behind the proxy, and the same without it."""

    faults: HttpFaults
    tables: IcebergTables
    hurried: IcebergTables
    """The same with a bound that a test can wait for."""
    direct: IcebergTables
    folder: Path

    def of(self, fault: Fault) -> IcebergTables:
        """The tables to meet the fault with."""
        waited_for = (Play.SILENT_BEFORE, Play.SILENT_AFTER, Play.DRIP, Play.DRIP_HEADER)
        return self.hurried if fault.play in waited_for else self.tables

    def made(self, tables: IcebergTables | None = None) -> TableView:
        """The table, created."""
        properties = table_properties(CLUSTER_ID, TOPIC_ID, "flights")
        return (tables or self.tables).create(
            IDENTIFIER, target_in(self.folder).location, schema_json(), "day", properties
        )


@pytest.fixture
def rig(rest_catalog: RestCatalog, tmp_path: Path) -> Iterator[Rig]:
    rest_catalog.empty()
    with HttpFaults(lambda: rest_catalog.uri) as faults:
        tables = IcebergTables("local", {"type": "rest", "uri": faults.uri}, SeededIds(7))
        hurried = IcebergTables(
            "local", {"type": "rest", "uri": faults.uri}, SeededIds(9), RemoteLimits(TIMEOUT_S)
        )
        direct = IcebergTables("direct", rest_catalog.properties, SeededIds(8))
        yield Rig(faults, tables, hurried, direct, tmp_path)
        tables.close()
        hurried.close()
        direct.close()


def ready(rig: Rig) -> tuple[TableView, Prepared]:
    view = rig.made()
    return view, prepared(rig.tables, view, one_file(view, 0, 5))


@pytest.mark.turns(2)
@pytest.mark.parametrize("fault", [*NOT_APPLIED, *APPLIED], ids=str)
def test_c6_a_swap_and_a_schema(rig: Rig, fault: Fault) -> None:
    expected = (NOT_APPLIED | APPLIED)[fault]
    there = fault in APPLIED or expected is YES
    _, request = ready(rig)
    rig.faults.arm(fault, "swap")
    swapped = rig.of(fault).swap(request)
    assert (swapped.outcome, bool(swapped.why)) == (expected, expected is not YES)
    after = loaded(rig.direct)
    assert [item.snapshot_id for item in after.snapshots] == ([request.snapshot_id] if there else [])
    assert len(list(rig.direct.live_files(after))) == there

    current = loaded(rig.tables)
    rig.faults.arm(fault, "evolve")
    assert rig.of(fault).evolve(current, with_column(current, "extra")).outcome is expected
    assert ('"extra"' in loaded(rig.direct).schema_json) is there
    assert not rig.faults.unmet


@pytest.mark.turns(2)
@pytest.mark.parametrize("fault", [*NOT_APPLIED, *APPLIED], ids=str)
def test_a_create(rig: Rig, fault: Fault) -> None:
    expected = (NOT_APPLIED | APPLIED)[fault]
    there = fault in APPLIED or expected is YES
    rig.faults.arm(fault, "create")
    if fault.status == 409:
        with pytest.raises(KeyExists):
            rig.made(rig.of(fault))
    elif expected is YES:
        rig.made(rig.of(fault))
    else:
        with pytest.raises(
            RetryLater if expected is NO else OutcomeUnknown, match="created in catalog local"
        ):
            rig.made(rig.of(fault))
    assert (rig.direct.load(IDENTIFIER) is not None) is there
    assert not rig.faults.unmet


@pytest.mark.turns(2)
@pytest.mark.parametrize("fault", [*NOT_APPLIED, *APPLIED], ids=str)
def test_a_load_that_fails_says_nothing_of_the_table(rig: Rig, fault: Fault) -> None:
    view = rig.made()
    rig.faults.arm(fault, "load")
    if fault.play is Play.SLOW or fault.status in (401, 419):
        assert rig.tables.load(IDENTIFIER) == view
    else:
        with pytest.raises(RetryLater, match=r"demo\.flights cannot be loaded from catalog local"):
            rig.of(fault).load(IDENTIFIER)
    assert rig.tables.load(IDENTIFIER) == view


def test_a_namespace_that_cannot_be_made_is_no_table(rig: Rig) -> None:
    rig.faults.arm(Fault(Play.RESET_AFTER), "namespace")
    with pytest.raises(RetryLater, match="namespace demo cannot be made"):
        rig.made()
    assert rig.direct.load(IDENTIFIER) is None
    rig.made()


@pytest.mark.turns(2)
@pytest.mark.parametrize("fault", [*NOT_APPLIED, *APPLIED], ids=str)
def test_a_catalog_that_cannot_be_opened_is_away(rig: Rig, fault: Fault) -> None:
    rig.made(rig.direct)
    rig.faults.arm(fault, "config")
    if fault.play is not Play.SLOW and fault.status not in (401, 419):
        with pytest.raises(CatalogAway, match="catalog local cannot be reached"):
            rig.of(fault).load(IDENTIFIER)
    assert rig.of(fault).load(IDENTIFIER) is not None
    assert not rig.faults.unmet


def test_a_request_that_was_never_sent_is_a_no(rig: Rig) -> None:
    view, request = ready(rig)
    rig.faults.refuse()
    assert rig.tables.swap(request).outcome is NO
    assert rig.tables.evolve(view, with_column(view, "extra")).outcome is NO
    with pytest.raises(RetryLater):
        rig.tables.load(IDENTIFIER)
    with pytest.raises(CatalogAway, match="catalog local cannot be reached"):
        rig.tables.load(IDENTIFIER)
    assert rig.tables.swap(request).outcome is NO
    rig.faults.recover()
    assert rig.tables.swap(request).outcome is YES


def test_a_silent_catalog_is_waited_for_within_the_bound_and_distinguished_from_a_silent_table(
    rig: Rig,
) -> None:
    rig.made()
    assert rig.hurried.load(IDENTIFIER) is not None
    clock = SystemClock()
    rig.faults.be_silent()
    began_s = clock.monotonic_s()
    with pytest.raises(RetryLater) as caught:
        rig.hurried.load(IDENTIFIER)
    assert not isinstance(caught.value, CatalogAway), "it may be this table alone"
    with pytest.raises(CatalogAway):
        rig.hurried.load(IDENTIFIER)
    assert clock.monotonic_s() - began_s < 10 * TIMEOUT_S
    rig.faults.recover()
    assert rig.hurried.load(IDENTIFIER) is not None
    rig.faults.arm(Fault(Play.SILENT_BEFORE), "load")
    with pytest.raises(RetryLater):
        rig.hurried.load(IDENTIFIER)
    assert rig.hurried.load(("demo", "other")) is None, "the catalog is there"


@pytest.mark.parametrize(
    ("play", "reported"),
    [(Play.DRIP, "not whole after"), (Play.DRIP_HEADER, "timed out")],
    ids=["body", "header"],
)
def test_an_answer_that_drips_is_cut_at_the_bound(rig: Rig, play: Play, reported: str) -> None:
    rig.made()
    assert rig.hurried.load(IDENTIFIER) is not None
    clock = SystemClock()
    rig.faults.arm(Fault(play), "load")
    began_s = clock.monotonic_s()
    with pytest.raises(RetryLater, match=reported):
        rig.hurried.load(IDENTIFIER)
    assert TIMEOUT_S <= clock.monotonic_s() - began_s < 8 * TIMEOUT_S


def test_the_bound_is_on_every_connection_of_the_session(rig: Rig) -> None:
    rig.made()
    session: Any = rig.hurried._catalog()._session  # type: ignore[attr-defined]
    assert {type(adapter).__name__ for adapter in session.adapters.values()} == {"_Bounded"}
    assert session.get(f"{rig.faults.uri}/v1/config").json()["overrides"]
    rig.faults.be_silent()
    with pytest.raises(requests.Timeout):
        session.get(f"{rig.faults.uri}/v1/config")
