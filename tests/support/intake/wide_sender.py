"""A process that sends batches over many partitions: `python -m tests.support.intake.wide_sender ROOT NAME
PARTITIONS BATCHES`.

Says `ready`, waits for a line on standard input, then sends; prints a JSON list of partitions and one of
offsets per batch, in the order of its rows. The value of a row says who sent it, and as the how-manyth of its
partition.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pyarrow as pa

from archiver.config.groups import LogSettings
from tests.support.intake.intake_rig import WAIT_S, IntakeRig

TOPIC = "wide"
ROWS_PER_PARTITION = 2


def rows_of(name: str, batch: int, partitions: int) -> list[tuple[int, bytes]]:
    """Partition and value of every row of a batch: each partition comes twice, in an order of the batch's
    own."""
    order = [partition for partition in range(partitions) for _ in range(ROWS_PER_PARTITION)]
    random.Random(f"{name} {batch}").shuffle(order)
    seen = [0] * partitions
    rows: list[tuple[int, bytes]] = []
    for partition in order:
        rows.append((partition, f"{name}/{batch * ROWS_PER_PARTITION + seen[partition]}".encode()))
        seen[partition] += 1
    return rows


def main(root: str, name: str, partitions: int, batches: int) -> None:
    """Send, wait for every acknowledgement, print them."""
    rig = IntakeRig(Path(root), LogSettings(append_backoff=0.002, append_attempts_max=20))
    rig.topic(TOPIC, partitions)
    with rig.writer(delay_max=0.001) as writer:
        print("ready", flush=True)
        sys.stdin.readline()
        pending = []
        for batch in range(batches):
            rows = rows_of(name, batch, partitions)
            table = pa.table(
                {"value": [value for _, value in rows], "partition": [partition for partition, _ in rows]}
            )
            pending.append(writer.send_batch(TOPIC, table))
            writer.flush()
        for one in pending:
            done = one.result(WAIT_S)
            assert done.outcome == "ok", done.verdicts
            print(json.dumps([done.partitions.tolist(), done.offsets.tolist()]))
    rig.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
