"""The choice of a daemon for a client: the same everywhere, even, and stable when daemons come and go."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.log.brokers import Broker, coordinator_of, leader_of, node_id_for
from archiver.runtime.errors import RetryLater

REPOSITORY = Path(__file__).parents[2]
RACKS = ("", "east", "west")


def broker(node_id: int, rack: str = "", incarnation: str = "x") -> Broker:
    return Broker(node_id, f"host-{node_id}", 9092, rack, incarnation)


Brokers = st.lists(
    st.builds(broker, st.integers(1, 1000), st.sampled_from(RACKS)),
    min_size=1,
    max_size=12,
    unique_by=lambda one: one.node_id,
)
CLIENTS = [f"client-{number}" for number in range(3000)]


@given(Brokers, st.sampled_from(RACKS), st.text(max_size=20), st.randoms())
def test_it_does_not_depend_on_the_order(
    brokers: list[Broker], rack: str, client: str, random: Random
) -> None:
    shuffled = list(brokers)
    random.shuffle(shuffled)
    assert leader_of(shuffled, rack, client) == leader_of(brokers, rack, client)
    assert coordinator_of(shuffled, client) == coordinator_of(brokers, client)


@given(Brokers, st.sampled_from(RACKS), st.text(max_size=20))
def test_the_clients_own_rack_comes_first(brokers: list[Broker], rack: str, client: str) -> None:
    same = [one for one in brokers if rack and one.rack == rack]
    assert leader_of(brokers, rack, client) in (same or brokers)


@given(Brokers, st.data(), st.sampled_from(RACKS), st.text(max_size=20))
def test_a_daemon_that_leaves_moves_its_own_clients_only(
    brokers: list[Broker], data: st.DataObject, rack: str, client: str
) -> None:
    leader, coordinator = leader_of(brokers, rack, client), coordinator_of(brokers, client)
    gone = data.draw(st.sampled_from(brokers))
    left = [one for one in brokers if one != gone]
    if gone != leader:
        assert leader_of(left, rack, client) == leader
    if gone != coordinator:
        assert coordinator_of(left, client) == coordinator


def test_the_clients_of_a_daemon_that_leaves_spread_over_the_others() -> None:
    brokers = [broker(number) for number in range(1, 6)]
    moved = [client for client in CLIENTS if leader_of(brokers, "", client).node_id == 3]
    found = Counter(leader_of([*brokers[:2], *brokers[3:]], "", client).node_id for client in moved)
    assert sorted(found) == [1, 2, 4, 5]
    assert min(found.values()) > len(moved) / 8


def test_clients_and_groups_spread_evenly() -> None:
    brokers = [broker(number) for number in range(1, 6)]
    for found in (
        Counter(leader_of(brokers, "", client).node_id for client in CLIENTS),
        Counter(coordinator_of(brokers, client).node_id for client in CLIENTS),
    ):
        assert sorted(found) == [1, 2, 3, 4, 5]
        assert min(found.values()) > 500 and max(found.values()) < 700


def test_leader_and_coordinator_are_chosen_independently() -> None:
    brokers = [broker(number) for number in range(1, 6)]
    same = sum(leader_of(brokers, "", client) == coordinator_of(brokers, client) for client in CLIENTS)
    assert same < len(CLIENTS) / 3


def test_parts_of_a_name_do_not_run_together() -> None:
    brokers = [broker(number) for number in range(1, 6)]
    text = "rack-and-client-id"
    found = {leader_of(brokers, text[:cut], text[cut:]).node_id for cut in range(len(text))}
    assert len(found) > 1


def test_a_restarted_daemon_keeps_its_clients() -> None:
    brokers = [broker(number) for number in range(1, 4)]
    restarted = [broker(1), broker(2, incarnation="y"), broker(3)]
    for client in CLIENTS[:100]:
        assert leader_of(brokers, "", client).node_id == leader_of(restarted, "", client).node_id


def test_every_version_and_process_chooses_the_same() -> None:
    """Daemons of two versions run together during an upgrade, so these values never change."""
    program = (
        "from archiver.log.brokers import Broker, coordinator_of, leader_of\n"
        "brokers = [Broker(number, 'h', 1, 'east' if number % 2 else 'west', '') for number in range(1, 10)]\n"
        "print([leader_of(brokers, rack, name).node_id for rack in ('', 'east', 'north') "
        "for name in ('', 'rdkafka', 'zähler', '\\ud800')], "
        "[coordinator_of(brokers, name).node_id for name in ('', 'group', 'orders')])"
    )
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == "[4, 3, 5, 6, 1, 1, 3, 3, 3, 3, 4, 3] [1, 5, 5]"


def test_without_daemons_there_is_no_choice() -> None:
    with pytest.raises(ValueError, match="empty"):
        leader_of([], "", "client")
    with pytest.raises(ValueError, match="empty"):
        coordinator_of([], "group")


def test_a_node_id_is_the_smallest_that_was_never_given() -> None:
    known = [(3, "c", 1), (1, "a", 1)]
    assert node_id_for([], (), "a", 1) == 1
    assert node_id_for(known, (), "b", 1) == 2
    assert node_id_for(known, (), "c", 1) == 3
    assert node_id_for(known, (), "c", 2) == 2


def test_with_all_node_ids_given_the_longest_unused_is_given_again() -> None:
    known = [(number, "host", number) for number in range(1, 1001)]
    assert node_id_for(known, {1, 2}, "new", 1) == 3
    assert node_id_for(known, {1, 2}, "host", 2) == 2
    with pytest.raises(RetryLater, match="1000 daemons"):
        node_id_for(known, set(range(1, 1001)), "new", 1)
