"""The protocol, searched: small scenarios whole, every mutation that is noticed quickly, and a few random
walks.

The rest takes long: `make model` searches everything (docs/protocols/publish.md has the results).
"""

from __future__ import annotations

import pytest

from tests.model.scenarios import MUTATIONS, SCENARIOS, SMALL, WALKS, Mutation
from tests.model.search import explore, walk
from tests.model.switches import RULES, Config

STATES_MAX = 8000
"""A mutation that needs more to be caught is left to `make model`."""
SLOW = ("wmcheck", "turn", "lineage", "once", "fence", "spare")
"""Caught behind more states than that."""
WALKS_MAX = 50
CAUGHT = [mutation for mutation in MUTATIONS if mutation.caught and mutation.name not in SLOW]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_scenario_holds_in_every_state(name: str) -> None:
    found = explore(Config(**SCENARIOS[name]), seconds=600)
    assert found.why is None, "\n".join((found.why, *found.trace))
    assert found.whole
    assert found.states > 1000, "the scenario reaches next to nothing"


@pytest.mark.slow
@pytest.mark.parametrize("mutation", CAUGHT, ids=lambda mutation: str(mutation.name))
def test_without_a_rule_the_search_finds_something(mutation: Mutation) -> None:
    found = explore(mutation.config(), seconds=600, states_max=STATES_MAX)
    assert found.why is not None, f"{found.states} states without {mutation.name}, and nothing is wrong"


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_random_walks_find_nothing(name: str) -> None:
    found, walks = walk(Config(**WALKS[name]), seconds=600, seed=1, walks_max=WALKS_MAX)
    assert found.why is None, "\n".join((found.why, *found.trace))
    assert walks == WALKS_MAX


def test_every_rule_is_broken_by_some_mutation() -> None:
    assert {rule for mutation in MUTATIONS for rule in mutation.off} == set(RULES)
