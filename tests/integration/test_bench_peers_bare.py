"""Do the libraries alone, in bench/peers, ingest each order once on a real broker, and check what they claim
to check?
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.peers import bare_program
from bench.peers.__main__ import BROKER, MEASURED, WARM, Setup, run_once
from bench.peers.bare import Libraries
from bench.peers.upstream import decoded, fill
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster

RECORDS = 3_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_the_libraries_alone(tmp_path: Path) -> None:
    setup = Setup(["libraries"], RECORDS, 1, [0, 1], 2)
    with KafkaServer(tmp_path / "kafka", BROKER) as broker:
        fill(broker.brokers, MEASURED, RECORDS)
        fill(broker.brokers, WARM, setup.warm_records)
        run = run_once(
            Libraries, broker, tmp_path / "run", setup, decoded(RECORDS)
        )  # compares the table with the orders
        assert (run.commits, run.proofs) == (1, {"rows_of_the_newest_snapshot": RECORDS})
        assert run.cpu["workers"] > 0, "what its processes take is counted"
        shares = [
            [value for values in bare_program.consumed(broker.brokers, MEASURED, share) for value in values]
            for share in ([0, 2], [1, 3])
        ]
        assert sum(map(len, shares)) == RECORDS
        fill_one(broker.brokers, b"\x08\x80\x00")  # an id of zero in two bytes, which no encoder writes
        with pytest.raises(AssertionError):
            bare_program.take_share(broker.brokers, "odd", str(tmp_path / "odd"), [0])


def fill_one(brokers: str, value: bytes) -> None:
    """A topic with one message that decodes, and whose columns do not give its bytes back."""
    producer = Producer({"bootstrap.servers": brokers})
    Cluster(brokers).create("odd", 1)
    producer.produce("odd", value, partition=0)
    assert producer.flush(30) == 0
