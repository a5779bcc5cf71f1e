"""Copies topics of a broker into intake files through the library, as a separate program.

`python -m bench.peers.sender_program SETTINGS`, a JSON object `{"configuration", "brokers",
"topics"}`. Prints one JSON object: how many records each topic had, and the CPU seconds of this
process. These run from the values in memory to the last acknowledgement and exclude reading from
the broker. Each record keeps its partition and its time.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from archiver import Writer
from bench.peers.bare_program import consumed
from bench.peers.upstream import PARTITIONS

ANSWER_S = 60.0


def send(configuration: str, topic: str, parts: list[list[tuple[list[bytes], list[int]]]]) -> int:
    """Send the batches of all partitions in turns, in their order, with a new writer; return the
    number of records.
    """
    sent = 0
    with Writer(configuration) as writer:
        for batches in zip_longest(*parts):
            pending = [
                writer.send_batch(topic, _table(*batch), partition)
                for partition, batch in enumerate(batches)
                if batch is not None
            ]
            for one in pending:
                answer = one.result(ANSWER_S)
                assert answer.outcome == "ok", answer.verdicts
                sent += len(answer)
    return sent


def _table(values: list[bytes], times_ms: list[int]) -> pa.Table:
    times = pa.array(times_ms, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    return pa.table({"value": pa.array(values, pa.binary()), "event_timestamp": times})


def _time_ms(message: Message) -> int:
    return message.timestamp()[1]


def main(settings: dict[str, Any]) -> None:
    """Send all topics."""
    reported = {}
    for topic in settings["topics"]:
        parts = []
        for partition in range(PARTITIONS):
            values, times = (
                consumed(settings["brokers"], topic, [partition], what) for what in (Message.value, _time_ms)
            )
            parts.append(list(zip(values, times, strict=True)))
        began = time.process_time()
        sent = send(settings["configuration"], topic, parts)
        reported[topic] = {"records": sent, "cpu_s": time.process_time() - began}
    print(json.dumps(reported))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
