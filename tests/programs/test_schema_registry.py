"""A schema registry that stores its state in Kafka topics: Apicurio with its storage `kafkasql`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.schema.real_registry import RealRegistry, registry_program  # noqa: F401 - a fixture
from tests.system.test_kafka_listener_served import address, bootstrap, configure, coordinator, started, two

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turns(5, 3)]

JOURNAL = "kafkasql-journal"


def text(number: int) -> str:
    """An Avro schema, in the form in which the registry keeps it."""
    fields = [{"name": f"f{number}", "type": "string"}]
    document = {"type": "record", "name": f"R{number}", "fields": fields}
    return json.dumps(document, separators=(",", ":"))


@contextmanager
def registry(program: Path, folder: Path, servers: str) -> Iterator[RealRegistry]:
    """A registry with nothing but what the topics have."""
    folder.mkdir()
    options = {
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": servers,
        "apicurio.storage.snapshot.location": folder,
    }
    one = RealRegistry(program, folder, options=options)
    try:
        one.start()
        yield one
    finally:
        one.kill()


def group(servers: str) -> str:
    """The group in which the registry reads its journal; the registry chooses the name at random."""
    client = AdminClient({"bootstrap.servers": servers})

    def reading() -> str | None:
        for listed in client.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(30).valid:
            asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(listed.group_id)])
            (committed,) = (one.result(30) for one in asked.values())
            if any(part.topic == JOURNAL and part.offset > 0 for part in committed.topic_partitions):
                return str(listed.group_id)
        return None

    name: str = until("the registry commits", reading)
    return name


def found(one: RealRegistry, ids: dict[str, int]) -> dict[str, tuple[int, str]]:
    """Id and text of the newest version of these subjects; an error if the registry has others."""
    subjects = requests.get(f"{one.url}/subjects", timeout=30).json()
    assert set(subjects) == set(ids)
    answers = {
        name: requests.get(f"{one.url}/subjects/{name}/versions/latest", timeout=30).json() for name in ids
    }
    return {name: (answer["id"], answer["schema"]) for name, answer in answers.items()}


def test_registry_keeps_every_schema(registry_program: Path, tmp_path: Path) -> None:  # noqa: F811 - a fixture
    deployment = Deployment(tmp_path / "d")
    configure(deployment, group_initial_rebalance_delay="100ms")
    ids: dict[str, int] = {}

    def register(one: RealRegistry, count: int) -> None:
        for _ in range(count):
            name = f"subject-{len(ids)}"
            ids[name] = one.register(name, text(len(ids)), kind="AVRO")

    with two(deployment, tmp_path) as daemons:
        servers = ",".join(map(bootstrap, daemons))
        with registry(registry_program, tmp_path / "first", servers) as one:
            register(one, 3)
            place = coordinator(daemons[0], group(servers))
            killed = next(daemon for daemon in daemons if address(daemon) == place)
            killed.kill()
            register(one, 3)
            before = found(one, ids)
    assert before == {name: (ids[name], text(number)) for number, name in enumerate(ids)}
    with (
        started(deployment, tmp_path / "again") as daemon,
        registry(registry_program, tmp_path / "second", bootstrap(daemon)) as one,
    ):
        after = found(one, ids)
        assert [written for _, written in after.values()] == [written for _, written in before.values()]
        # Later schemas may have another id than before: the registry counts ids while it reads, and a consumer whose
        # coordinator died reads again what it had not committed.
        assert list(after.values())[:3] == list(before.values())[:3]
        register(one, 1)
        assert found(one, ids)[f"subject-{len(ids) - 1}"][1] == text(len(ids) - 1)
