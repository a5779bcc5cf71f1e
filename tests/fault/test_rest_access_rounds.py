"""Whole rounds against a REST catalog that requires tokens: with any failure of a token, at any time, no row
is lost, doubled or given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.rest_guard import CLIENT_SECRET, Guard, Guarded, properties
from tests.support.catalog.rest_rounds import RestRounds
from tests.support.servers.http_faults import Fault, Play

pytestmark = pytest.mark.spark  # needs Java


def rounds_on(folder: Path, catalog: RestCatalog, guard: Guard) -> tuple[RestRounds, Guarded]:
    """Rounds on a guarded catalog; the secret is in a file, as it should be."""
    guarded = Guarded(lambda: catalog.uri, guard)
    settings: dict[str, object] = {**properties(guarded), "credential": {"file": "client"}}
    folder.mkdir(parents=True)
    (folder / "client").write_text(f"{properties(guarded)['credential']}\n", encoding="utf-8")
    return RestRounds(
        folder, catalog, faults=guarded, catalog_settings=settings, archive={"commit_attempts_max": 2}
    ), guarded


@pytest.mark.parametrize("uses", [1, 2, 3, 5])
def test_tokens_that_expire_at_any_request(rest_catalog: RestCatalog, tmp_path: Path, uses: int) -> None:
    rounds, guarded = rounds_on(tmp_path / f"expire{uses}", rest_catalog, Guard("oauth2", uses=uses))
    with rounds:
        for _ in range(2):
            rounds.send()
            report, _ = rounds.archive()
            assert report.state == "archived", report.why
            rounds.check_settled()
        assert guarded.guard.refusals >= 2


@pytest.mark.parametrize(
    "fault", [Fault(Play.ANSWER_BEFORE, 503), Fault(Play.SILENT_BEFORE), Fault(Play.RESET_BEFORE)], ids=str
)
def test_a_commit_that_may_have_landed_and_then_no_token(
    rest_catalog: RestCatalog,
    tmp_path: Path,
    fault: Fault,
) -> None:
    """The swap is applied and its answer lost; resolving its outcome needs a token that no server issues."""
    rounds, guarded = rounds_on(tmp_path / f"t{fault}", rest_catalog, Guard("oauth2", uses=None))
    with rounds:
        rounds.send()
        rounds.archive()
        rounds.send()
        rounds.hurry()
        guarded.arm(Fault(Play.RESET_AFTER), "swap")
        guarded.guard.on_swap = guarded.guard.expire
        for _ in range(10):
            guarded.arm(fault, "token", after="swap")
        report, _ = rounds.archive()
        assert report.state == "deferred", (report.state, report.why)
        assert "may still land" in (report.why or "")
        assert guarded.unmet < 10, "a token was asked for and not given"
        rounds.check_unharmed()
        assert rounds.ledger.pending, "nobody has said that it came to nothing"
        rounds.close()
        guarded.disarm()
        rounds.hurry(again=False)
        report, _ = rounds.archive()
        assert report.state in ("archived", "idle"), report.why
        rounds.check_settled()


def test_a_secret_that_was_changed_halts_the_topic_until_it_is_put_right(
    rest_catalog: RestCatalog,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "changed"
    rounds, guarded = rounds_on(folder, rest_catalog, Guard("oauth2"))
    with rounds:
        rounds.send()
        rounds.archive()
        rounds.close()
        right = (folder / "client").read_text()
        (folder / "client").write_text("archiver:old\n", encoding="utf-8")
        rounds.send()
        report, _ = rounds.archive()
        assert report.state == "halted"
        assert "check credential" in (report.why or "")
        assert guarded.token_uri in (report.why or "")
        assert CLIENT_SECRET not in (report.why or "")
        rounds.check_unharmed()
        rounds.close()
        (folder / "client").write_text(right, encoding="utf-8")
        report, _ = rounds.archive()
        assert report.state == "archived", report.why
        rounds.check_settled()
