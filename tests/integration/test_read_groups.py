"""Consumer groups through the read API: lag, offsets, members, and what a reader may not describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from archiver.app import reading_groups
from archiver.app.group_reset import reset_alone
from archiver.app.reading import Reading
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import NotFound, RetryLater
from archiver.status.group_members import ShownGroup, ShownMember
from archiver.status.journal import Journal
from archiver.web import access
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.process.pages import check_harmless
from tests.support.process.processes import until
from tests.support.process.web import Daemon, basic, kafka_users

HOSTILE = [
    "<script>alert(1)</script>",
    "a&b=c#d?e/../f",
    "\u202egnp\u200b",
    "a\r\nb\x00",
    '"><svg onload=1>',
    "{{ 7 * 7 }}",
    "",
    "ü" * 500,
]


def user(name: str) -> dict[str, str]:
    return basic(name, f"secret {name}")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """`readers` has read a part of `clicks` and all of `kept`; `others` a part of `orders`."""
    monkeypatch.setattr(access, "FAILED_WAIT_S", 0.0)
    passwords = {name: f"secret {name}" for name in ("alice", "bob")}
    rules = [
        {"principal": "User:alice", "operations": ["read"], "topics": ["clicks"], "groups": ["readers"]},
        {"principal": "User:bob", "operations": ["describe"], "topics": ["*"], "groups": ["others"]},
    ]
    kafka = kafka_users(tmp_path / "users", passwords, rules)
    deployment = Deployment(tmp_path / "d", overrides={"kafka": kafka})
    with Driver(deployment) as driver:
        driver.send("clicks", [b"%d" % number for number in range(5)], 0)
        driver.send("kept", [b"1"], 0)
        driver.send("orders", [b"x"], 1)
    with Daemon(deployment) as daemon:
        commit(daemon, "readers", "clicks", {0: 2})
        commit(daemon, "readers", "kept", {0: 1})
        commit(daemon, "others", "orders", {1: 0})
        yield daemon


def commit(daemon: Daemon, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    app = daemon.application
    assert app.settings.kafka is not None
    reset_alone(app, app.settings.kafka, group, app.topic(topic).topic_id, offsets)


def get(daemon: Daemon, path: str, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    # A proxy's header makes the port ask for a login.
    given = {} if headers is None else {"X-Forwarded-For": "192.0.2.1", **headers}
    reply = daemon.call("GET", f"/v1{path}", headers=given)
    assert reply.status == status, reply.body
    page = daemon.call("GET", path, headers=given)
    assert page.status == status
    check_harmless(page)
    return reply.json()


def test_groups_are_listed_with_their_lag(daemon: Daemon) -> None:
    found = get(daemon, "/groups")
    assert [(one["group"], one["topics"], one["lag_records"]) for one in found["groups"]] == [
        ("others", ["orders"], 1),
        ("readers", ["clicks", "kept"], 3),
    ]
    readers = found["groups"][1]
    assert readers["lag_seconds"] > 0
    assert readers["commit_age_seconds"] >= 0
    assert (readers["partitions"], readers["topic_count"], readers["topics_hidden"]) == (2, 2, 0)
    assert (readers["coordinator"], readers["here"], readers["members"]) == (None, False, None)
    assert (found["next"], found["trouble"]) == (None, None)


def test_a_group_has_its_offsets_with_times(daemon: Daemon) -> None:
    found = get(daemon, "/group?group=readers")
    rows = {(one["topic"], one["partition"]): one for one in found["partitions"]}
    assert set(rows) == {("clicks", 0), ("kept", 0)}
    clicks = rows["clicks", 0]
    assert (clicks["committed"], clicks["end"], clicks["lag_records"]) == (2, 5, 3)
    assert clicks["committed_at"].startswith("20")
    assert found["membership"] is None
    assert found["coordinator"]["address"] is None
    assert (found["partitions_left"], found["pending"], found["trouble"]) == (0, [], None)
    page = daemon.call("GET", "/group?group=readers").body.decode()
    assert "No live daemon coordinates the group" in page
    assert "/topics/clicks/messages?partition=0&amp;from=2" in page


def test_an_unknown_group_is_not_found_and_a_missing_id_is_named(daemon: Daemon) -> None:
    assert "nowhere" in get(daemon, "/group?group=nowhere", 404)["error"]["message"]
    assert "group is missing" in get(daemon, "/group", 400)["error"]["message"]


def test_lists_of_groups_go_on_without_a_gap_or_a_double(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        commit(daemon, f"group {number}", "clicks", {0: number})
    names: list[str] = []
    for limit, room in ((2, 20_000), (500, 1)):
        monkeypatch.setattr(reading_groups, "LIST_PARTITIONS_MAX", room)
        names, after = [], None
        while True:
            asked = f"&after={quote(after)}" if after is not None else ""
            found = get(daemon, f"/groups?limit={limit}{asked}")
            assert len(found["groups"]) <= 2
            names += [one["group"] for one in found["groups"]]
            after = found["next"]
            if after is None:
                break
        assert names == [*(f"group {number}" for number in range(5)), "others", "readers"]


def test_rules_decide_which_groups_and_topics_are_named(daemon: Daemon) -> None:
    commit(daemon, "readers", "orders", {0: 0, 1: 0})
    (found,) = get(daemon, "/groups", headers=user("alice"))["groups"]
    assert (found["group"], found["topics"], found["topics_hidden"]) == ("readers", ["clicks"], 2)
    assert (found["partitions"], found["lag_records"]) == (1, 3)
    group = get(daemon, "/group?group=readers", headers=user("alice"))
    assert [one["topic"] for one in group["partitions"]] == ["clicks"]
    assert (group["topics_hidden"], group["lag_records"]) == (2, 3)
    headers = {"X-Forwarded-For": "192.0.2.1", **user("alice")}
    for path in ("/groups", "/group?group=readers", "/v1/groups", "/v1/group?group=readers"):
        body = daemon.call("GET", path, headers=headers).body
        assert b"orders" not in body, path
        assert b"kept" not in body, path
    assert [one["group"] for one in get(daemon, "/groups", headers=user("bob"))["groups"]] == ["others"]


def test_a_refusal_does_not_say_whether_the_group_exists(daemon: Daemon) -> None:
    there, absent = (
        get(daemon, f"/group?group={name}", 403, user("alice")) for name in ("others", "nowhere")
    )
    assert there == absent


def test_a_group_of_hidden_topics_alone_says_so(daemon: Daemon) -> None:
    found = daemon.face.reads.group(lambda resource, name: resource == "group" or name == "orders", "readers")
    assert (found["partitions"], found["topics_hidden"], found["lag_records"]) == ([], 2, None)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ids_are_shown_and_do_nothing(daemon: Daemon, name: str) -> None:
    commit(daemon, name, "clicks", {0: 1})
    names = [one["group"] for one in get(daemon, "/groups")["groups"]]
    assert name in names
    assert get(daemon, f"/group?group={quote(name, safe='')}")["group"] == name
    assert get(daemon, f"/groups?after={quote(name, safe='')}")["groups"] is not None


class Members:
    """A daemon that coordinates every group."""

    def __init__(self, group: ShownGroup | None, error: RetryLater | None = None) -> None:
        self.node_id = 1
        self._group, self._error = group, error

    def names(self) -> Sequence[str]:
        return ["joined", "readers"]

    def states(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        if self._error is not None:
            raise self._error
        return {name: ("Stable", 2) for name in names if name in self.names()}

    def shown(self, group: str) -> ShownGroup | None:
        if self._error is not None:
            raise self._error
        return self._group


def member(name: str, **changes: Any) -> ShownMember:
    values: dict[str, Any] = {
        "instance_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "subscribed": ["clicks", "kept"],
        "pattern": None,
        "assigned": {"clicks": [0, 1], "kept": [0]},
    }
    return ShownMember(name, **{**values, **changes})


def test_members_are_shown_with_what_they_are_assigned(daemon: Daemon) -> None:
    members = [
        member("a", pattern="^kept$"),
        member("<b>", subscribed=None, assigned=None, pattern="^<i>", instance_id="one"),
    ]
    daemon.members = Members(ShownGroup("Stable", "consumer", "uniform", 7, False, members, 3))
    listed = {one["group"]: one for one in get(daemon, "/groups")["groups"]}
    assert listed["joined"]["lag_records"] is None, "it has members, and no committed offsets"
    assert (listed["readers"]["state"], listed["readers"]["members"]) == ("Stable", 2)
    found = get(daemon, "/group?group=readers")["membership"]
    assert (found["state"], found["generation"], found["members_left"]) == ("Stable", 7, 3)
    assert found["members"][0]["assigned"] == [
        {"topic": "clicks", "partitions": [0, 1]},
        {"topic": "kept", "partitions": [0]},
    ]
    assert found["members"][0]["assigned_count"] == 3
    assert found["members"][1]["subscribed"] is None
    hidden = get(daemon, "/group?group=readers", headers=user("alice"))["membership"]["members"][0]
    assert (hidden["subscribed"], hidden["topics_hidden"]) == (["clicks"], 1)
    assert hidden["pattern"] is None, "it names a topic"
    assert [one["topic"] for one in hidden["assigned"]] == ["clicks"]
    assert hidden["assigned_count"] == 2


def test_offsets_are_shown_although_the_listener_does_not_answer(daemon: Daemon) -> None:
    daemon.members = Members(None, RetryLater("the Kafka listener is busy"))
    assert "busy" in get(daemon, "/groups")["trouble"]
    found = get(daemon, "/group?group=readers")
    assert "busy" in found["trouble"]
    assert len(found["partitions"]) == 2


# --- With a real listener
@pytest.fixture
def served(tmp_path: Path) -> Iterator[Listening]:
    path = configured(
        tmp_path / "kafka",
        [{"name": "orders", "partitions": 2}],
        kafka={"group_initial_rebalance_delay": "0s"},
    )
    with listening(path) as found:
        producer = Producer({"bootstrap.servers": found.bootstrap})
        for number in range(4):
            producer.produce("orders", b"x", partition=number % 2)
        assert producer.flush(30) == 0
        yield found


def everything(_resource: str, _name: str) -> bool:
    return True


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_real_consumers(served: Listening, protocol: str) -> None:
    reading = Reading(
        lambda: served.application, lambda: None, SystemClock(), Journal(10), lambda: served.service.groups
    )
    with pytest.raises(NotFound, match="no consumer group crew"):
        reading.group(everything, "crew")
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap,
            "group.id": "crew",
            "client.id": "worker-1",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])

    def assigned() -> bool:
        consumer.poll(0.1)
        return len(consumer.assignment()) == 2

    until("both partitions are assigned", assigned)
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    found = reading.group(everything, "crew")
    membership = found["membership"]
    assert (membership["protocol"], membership["state"]) == (protocol, "Stable")
    (one,) = membership["members"]
    assert one["client_id"] == "worker-1"
    assert one["subscribed"] == ["orders"]
    assert one["assigned"] == [{"topic": "orders", "partitions": [0, 1]}]
    assert found["coordinator"]["here"] is True
    assert found["coordinator"]["address"] == served.bootstrap
    assert [(row["partition"], row["committed"]) for row in found["partitions"]] == [(0, 1)]
    (listed,) = reading.groups(everything, None, 10)["groups"]
    assert (listed["state"], listed["members"], listed["here"]) == ("Stable", 1, True)
    hidden = reading.group(lambda resource, _name: resource == "group", "crew")
    assert hidden["membership"]["members"][0]["assigned"] == []
    assert (hidden["partitions"], hidden["topics_hidden"]) == ([], 1)
    consumer.close()
    assert reading.group(everything, "crew")["membership"]["members"] == []
