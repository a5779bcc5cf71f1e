"""Does a REST catalog that requires authentication get valid credentials in time?

No response of the catalog or of a token server may be mistaken for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.iceberg import rest
from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.auth import MARGIN_S, MARGIN_SHARE
from archiver.catalog.iceberg.guarded_io import IMPLEMENTATION
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.catalog.table_layout import table_properties
from archiver.catalog.tables import Prepared, SwapOutcome, TableView
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError, CatalogAway, Halt, RetryLater
from archiver.runtime.ids import SeededIds
from tests.contract.test_tables import one_file, prepared
from tests.contract.test_tables_evolve import with_column
from tests.support.builders.driver import AheadClock
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.rest_guard import (
    BEARER,
    CLIENT_SECRET,
    SECRET_ACCESS_KEY,
    Guard,
    Guarded,
    properties,
)
from tests.support.catalog.table_catalogs import loaded
from tests.support.catalog.tables import CLUSTER_ID, IDENTIFIER, TOPIC_ID, schema_json, target_in
from tests.support.servers.http_faults import Fault, Play

pytestmark = pytest.mark.spark  # needs Java

TIMEOUT_S = 1.5
IN_TIME_S = 6 * TIMEOUT_S
"""Longer than one time limit on a busy machine, and shorter than pyiceberg's eleven attempts or eight in turn."""
SCHEMES = ("bearer", "oauth2", "sigv4")
AWAY = [Fault(Play.ANSWER_BEFORE, status) for status in (500, 503, 429, 404)]
AWAY += [
    Fault(play)
    for play in (Play.SILENT_BEFORE, Play.RESET_BEFORE, Play.DRIP, Play.DRIP_HEADER, Play.GARBAGE_BEFORE)
]
Opened = Callable[..., tuple[Guarded, IcebergTables]]


@pytest.fixture
def opened(rest_catalog: RestCatalog) -> Iterator[Opened]:
    """A guarded catalog and the archiver's tables in it; keyword arguments change the configuration."""
    rest_catalog.empty()
    ends: list[Callable[[], None]] = []

    def make(guard: Guard, timeout_s: float = 30.0, **changed: str) -> tuple[Guarded, IcebergTables]:
        guarded = Guarded(lambda: rest_catalog.uri, guard)
        tables = IcebergTables(
            "lake", {**properties(guarded), **changed}, SeededIds(7), RemoteLimits(timeout_s)
        )
        ends.extend((tables.close, guarded.__exit__))
        return guarded, tables

    yield make
    for end in ends:
        end()


def made(tables: IcebergTables, folder: Path) -> TableView:
    return tables.create(
        IDENTIFIER,
        target_in(folder).location,
        schema_json(),
        "day",
        table_properties(CLUSTER_ID, TOPIC_ID, "flights"),
    )


def ready(tables: IcebergTables, folder: Path) -> tuple[TableView, Prepared]:
    view = made(tables, folder)
    return view, prepared(tables, view, one_file(view, 0, 5))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began_s = SystemClock().monotonic_s()
    yield
    assert SystemClock().monotonic_s() - began_s < seconds


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_request_says_who_we_are(opened: Opened, tmp_path: Path, scheme: str) -> None:
    guarded, tables = opened(Guard(scheme), **{"header.X-Tenant": "a team"})
    view, request = ready(tables, tmp_path)
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    view = loaded(tables)
    assert view.snapshot_id == request.snapshot_id
    assert tables.evolve(view, with_column(view, "extra")).outcome is SwapOutcome.APPLIED
    assert guarded.guard.refusals == 0
    assert {headers["x-tenant"] for headers in guarded.guard.headers} == {"a team"}
    assert not any("None" in headers.get("authorization", "") for headers in guarded.guard.headers)
    assert guarded.guard.delegation == {"vended-credentials"}


def test_without_authentication_no_token_is_sent(opened: Opened) -> None:
    guarded, _ = opened(Guard("bearer"))
    tables = IcebergTables("lake", {"type": "rest", "uri": guarded.uri}, SeededIds(7))
    with pytest.raises(Halt, match=r"configure credential, token or rest\.sigv4-enabled"):
        tables.load(IDENTIFIER)
    assert {headers.get("authorization") for headers in guarded.guard.headers} == {None}


def test_a_client_asks_its_own_token_server_for_what_is_configured(opened: Opened) -> None:
    guarded, tables = opened(Guard("oauth2"), audience="lake-house")
    assert tables.load(IDENTIFIER) is None
    (form,) = guarded.guard.asked_for_tokens
    assert (form["scope"], form["audience"], form["grant_type"]) == (
        "tables",
        "lake-house",
        "client_credentials",
    )
    assert tables.load(IDENTIFIER) is None
    assert len(guarded.guard.asked_for_tokens) == 1


WRONG = {
    "bearer": (
        {"token": "of-the-day-before"},
        "put a new one where the catalog's token is configured, and restart",
    ),
    "oauth2": (
        {"credential": "archiver:of-yesterday"},
        r"refuses us \(401: invalid_client who is that\): check credential, scope and audience",
    ),
    "sigv4": (
        {"client.secret-access-key": "key-of-yesterday"},
        "it does not accept the signature: check the keys",
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_wrong_credentials_halt_and_say_what_to_do(opened: Opened, scheme: str) -> None:
    changed, reported = WRONG[scheme]
    _, tables = opened(Guard(scheme), **changed)
    for _ in range(2):
        with pytest.raises(Halt, match=reported) as caught:
            tables.load(IDENTIFIER)
        for secret in (BEARER, CLIENT_SECRET, SECRET_ACCESS_KEY, *changed.values()):
            assert secret not in str(caught.value)


def test_keys_that_are_not_there_are_reported_before_anything_is_sent(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    guarded, _ = opened(Guard("sigv4"))
    plain = {name: value for name, value in properties(guarded).items() if not name.startswith("client.")}
    with pytest.raises(Halt, match="cannot be signed"):
        IcebergTables("lake", plain, SeededIds(7)).load(IDENTIFIER)
    assert not guarded.guard.headers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AheadClock:
    """The clock of tables that are opened later. A test moves it, so that no lifetime of a token is short."""
    made = AheadClock()
    monkeypatch.setattr(rest, "_CLOCK", made)
    return made


@pytest.mark.parametrize(
    ("lasts_s", "margin_s"), [(7200.0, MARGIN_S), (200.0, 200.0 * MARGIN_SHARE)], ids=["long", "short"]
)
def test_a_token_is_replaced_before_it_expires(
    clock: AheadClock, opened: Opened, lasts_s: float, margin_s: float
) -> None:
    guarded, tables = opened(Guard("oauth2", lasts_s=lasts_s))
    guard = guarded.guard
    assert tables.load(IDENTIFIER) is None
    clock.ahead_s = lasts_s - 2 * margin_s
    assert tables.load(IDENTIFIER) is None
    assert len(guard.asked_for_tokens) == 1
    clock.ahead_s = lasts_s - margin_s
    assert tables.load(IDENTIFIER) is None
    assert (len(guard.asked_for_tokens), guard.refusals) == (2, 0)


def test_a_token_that_is_good_for_a_while_bridges_a_token_server_that_is_away(
    clock: AheadClock, opened: Opened
) -> None:
    guarded, tables = opened(Guard("oauth2", lasts_s=7200.0))
    assert tables.load(IDENTIFIER) is None
    clock.ahead_s = 7200.0 - MARGIN_S
    for _ in range(2):
        guarded.arm(Fault(Play.ANSWER_BEFORE, 503), "token")
        assert tables.load(IDENTIFIER) is None
        assert not guarded.unmet
        assert tables.load(IDENTIFIER) is None, "it is not asked again at once"
        assert len(guarded.guard.asked_for_tokens) == 1
        clock.ahead_s += MARGIN_S / 2
    clock.ahead_s += MARGIN_S
    guarded.arm(Fault(Play.ANSWER_BEFORE, 503), "token")
    with pytest.raises(CatalogAway, match="cannot be reached"):
        tables.load(IDENTIFIER)


@pytest.mark.parametrize("lasts_s", [3600.0, None], ids=["said to last", "nothing said"])
def test_a_token_that_expires_in_the_middle_of_a_commit_is_replaced_once(
    opened: Opened, tmp_path: Path, lasts_s: float | None
) -> None:
    guarded, tables = opened(Guard("oauth2", lasts_s=lasts_s))
    _, request = ready(tables, tmp_path)
    guarded.guard.expire()
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    assert (guarded.guard.refusals, len(guarded.guard.asked_for_tokens), guarded.seen("swap")) == (1, 2, 2)
    view = loaded(tables)
    assert [item.snapshot_id for item in view.snapshots] == [request.snapshot_id]
    guarded.guard.expire()
    assert tables.evolve(view, with_column(view, "extra")).outcome is SwapOutcome.APPLIED
    guarded.guard.expire()
    assert '"extra"' in loaded(tables).schema_json


def test_new_tokens_that_are_refused_as_well_are_a_no_and_then_halt(opened: Opened, tmp_path: Path) -> None:
    guarded, tables = opened(Guard("oauth2"))
    _, request = ready(tables, tmp_path)
    guarded.guard.refusing = True
    swapped = tables.swap(request)
    assert swapped.outcome is SwapOutcome.CONFLICT
    assert len(guarded.guard.asked_for_tokens) == 2, "another one was tried"
    with pytest.raises(
        Halt, match=r"it refuses a token that .* has just given: check credential, scope and audience"
    ):
        tables.load(IDENTIFIER)
    with pytest.raises(Halt):
        tables.create(("demo", "other"), target_in(tmp_path).location, schema_json(), "day", {})
    guarded.guard.refusing = False
    assert tables.swap(request).outcome is SwapOutcome.APPLIED


@pytest.mark.turns(2)
@pytest.mark.parametrize("fault", AWAY, ids=str)
def test_a_token_server_that_is_away_is_a_catalog_that_is_away(
    opened: Opened, tmp_path: Path, fault: Fault
) -> None:
    guarded, tables = opened(Guard("oauth2"), TIMEOUT_S)
    guarded.arm(fault, "token")
    with within(IN_TIME_S), pytest.raises(CatalogAway, match="catalog lake cannot be reached: "):
        tables.load(IDENTIFIER)
    _, request = ready(tables, tmp_path)
    guarded.guard.expire()
    guarded.arm(fault, "token")
    with within(IN_TIME_S):
        assert tables.swap(request).outcome is SwapOutcome.CONFLICT, "it was refused, and not sent again"
    guarded.arm(fault, "token")
    with within(IN_TIME_S), pytest.raises(CatalogAway, match="cannot be reached"):
        tables.load(IDENTIFIER)
    assert not guarded.unmet
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    assert loaded(tables).snapshot_id == request.snapshot_id


def test_an_answer_of_the_token_server_is_not_followed_elsewhere(opened: Opened) -> None:
    guarded, tables = opened(Guard("oauth2"))
    guarded.arm(Fault(Play.ANSWER_BEFORE, 307), "token")
    with pytest.raises(CatalogAway, match="as no token server does"):
        tables.load(IDENTIFIER)
    assert guarded.seen("other") == 0, "the secret would be sent along"


def test_a_thread_that_waits_for_the_same_token_does_not_ask_in_turn(opened: Opened) -> None:
    guarded, tables = opened(Guard("oauth2"), TIMEOUT_S)
    tables.load(IDENTIFIER)
    guarded.guard.expire()
    with within(8 * TIMEOUT_S):
        assert at_once(tables, 8) == [None] * 8
    asked = len(guarded.guard.asked_for_tokens)
    assert 2 <= asked <= 4, asked  # a thread whose refusal comes late may replace a new token
    guarded.guard.expire()
    for _ in range(8):
        guarded.arm(Fault(Play.SILENT_BEFORE), "token")
    with within(IN_TIME_S):
        found = at_once(tables, 8)
    assert {type(one) for one in found} == {CatalogAway}


def at_once(tables: IcebergTables, count: int) -> list[object]:
    """The results of so many threads that load at the same time."""
    found: list[object] = []
    barrier = threading.Barrier(count)

    def load() -> None:
        barrier.wait()
        try:
            found.append(tables.load(IDENTIFIER))
        except ArchiverError as error:
            found.append(error)

    threads = [threading.Thread(target=load) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.turns(3)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_silent_catalog_is_waited_for_within_the_bound(opened: Opened, tmp_path: Path, scheme: str) -> None:
    """pyiceberg would retry a signed request ten times."""
    guarded, tables = opened(Guard(scheme), TIMEOUT_S)
    _, request = ready(tables, tmp_path)
    guarded.arm(Fault(Play.SILENT_AFTER), "swap")
    with within(IN_TIME_S):
        assert tables.swap(request).outcome is SwapOutcome.UNKNOWN
    assert loaded(tables).snapshot_id == request.snapshot_id
    guarded.arm(Fault(Play.SILENT_BEFORE), "load")
    with within(IN_TIME_S), pytest.raises(RetryLater):
        tables.load(IDENTIFIER)
    guarded.refuse()
    with within(IN_TIME_S):
        assert tables.swap(request).outcome is SwapOutcome.CONFLICT, "never sent"
    guarded.recover()


def test_what_we_may_not_do_is_reported_as_it_is(opened: Opened, tmp_path: Path) -> None:
    _, tables = opened(Guard("bearer", forbidden=("create",)))
    with pytest.raises(RetryLater, match="was not created in catalog lake: ForbiddenException: you may not"):
        made(tables, tmp_path)


def test_neither_a_tables_own_properties_nor_its_token_count(opened: Opened, tmp_path: Path) -> None:
    """Otherwise a user who may change a table could redirect our keys to another server. A token would be
    sent for other tables, too."""
    guarded, tables = opened(
        Guard("bearer", vended={"token": "for-this-table", "s3.region": "eu-north-1"}),
        **{"s3.endpoint": "https://ours"},
    )
    mine = table_properties(CLUSTER_ID, TOPIC_ID, "flights") | {
        "s3.endpoint": "https://theirs",
        "s3.access-key-id": "x",
        "py-io-impl": "no.such",
    }
    view = tables.create(IDENTIFIER, target_in(tmp_path).location, schema_json(), "day", mine)
    handle: Any = view.handle
    files = handle.io.properties
    assert (files["s3.endpoint"], files["s3.region"]) == ("https://ours", "eu-north-1")
    assert "s3.access-key-id" not in files
    assert files["py-io-impl"] == IMPLEMENTATION
    request = prepared(tables, view, one_file(view, 0, 5))
    assert tables.swap(request).outcome is SwapOutcome.APPLIED
    assert tables.load(("demo", "other")) is None
    assert {headers["authorization"] for headers in guarded.guard.headers} == {f"Bearer {BEARER}"}


def test_a_token_that_no_header_can_hold_is_none(opened: Opened) -> None:
    guarded, tables = opened(Guard("oauth2"))
    guarded.guard.issued = "two words\r\nX-Injected: 1"
    with pytest.raises(CatalogAway, match="as no token server does"):
        tables.load(IDENTIFIER)
