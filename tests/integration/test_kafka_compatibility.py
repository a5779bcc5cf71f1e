"""Does docs/kafka-compatibility.md claim only what a run shows? The clients of Python, and the one of Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility.checks import CHECKS, run, scene_listener
from tests.compatibility.compared_clients import PYTHON_CLIENTS, Client, Java
from tests.compatibility.page import YES, claims
from tests.support.kafka.listening import Listening

pytestmark = pytest.mark.timeout(240)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-compatibility.md"
CHECKED = (*PYTHON_CLIENTS, Java)


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with scene_listener(tmp_path_factory.mktemp("compatibility"), CHECKED) as found:
        yield found


@pytest.mark.parametrize("client", CHECKED, ids=lambda client: client.name)
def test_the_page_claims_what_a_run_shows(client: type[Client], listener: Listening) -> None:
    claimed = claims(PAGE.read_text(encoding="utf-8"))[client.name]
    assert set(claimed) == set(CHECKS), "run make kafka-compat"
    works = [feature for feature, cell in claimed.items() if cell == YES]
    assert len(works) > 10
    shown = run(client, listener, works)
    assert {feature: reason for feature, reason in shown.cells.items() if reason} == {}
    assert set(shown.cells) == set(works)
