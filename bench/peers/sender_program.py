"""A program of its own: topics of a broker into intake files, through the library.

`python -m bench.peers.sender_program SETTINGS`, a JSON object `{"configuration", "brokers", "topics"}`. Says, as one JSON object, how many
records each topic had and the CPU seconds that the library took to store them; what reading them from the broker took is not among these.
Each record goes into the partition that it has there.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from archiver import Writer
from bench.peers.bare_program import consumed
from bench.peers.upstream import PARTITIONS

ANSWER_S = 60.0


def send(writer: Writer, topic: str, parts: list[list[pa.Table]]) -> int:
    """Some records of each partition, then some more of each, as they came; how many."""
    sent = 0
    for batches in zip_longest(*parts):
        pending = [writer.send_batch(topic, batch, partition) for partition, batch in enumerate(batches) if batch is not None]
        for one in pending:
            answer = one.result(ANSWER_S)
            assert answer.outcome == "ok", answer.verdicts
            sent += len(answer)
    return sent


def main(settings: dict[str, Any]) -> None:
    """Send all topics."""
    told = {}
    with Writer(settings["configuration"]) as writer:
        for topic in settings["topics"]:
            parts = [
                [pa.table({"value": pa.array(values, pa.binary())}) for values in consumed(settings["brokers"], topic, [partition])]
                for partition in range(PARTITIONS)
            ]
            began = time.process_time()
            sent = send(writer, topic, parts)
            told[topic] = {"records": sent, "cpu_s": time.process_time() - began}
    print(json.dumps(told))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
