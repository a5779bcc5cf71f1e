"""A process that sends records and prints what was acknowledged:
`python -m tests.support.intake.intake_sender ROOT NAME COUNT`. Before each round it has
flushed, says `ready` and waits for a line on stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from archiver.config.groups import LogSettings
from intake.records import Record
from tests.support.intake.intake_rig import WAIT_S, IntakeRig

ROUND = 40
"""Records that are sent without waiting for the other process."""


def main(root: str, name: str, count: int) -> None:
    """Declare the topic as well, as every process of a deployment does; one JSON list of [value, partition,
    offset] on stdout."""
    rig = IntakeRig(Path(root), LogSettings(append_backoff=0.001))
    rig.topic("shared", 4)
    rig.topic(f"own-{name}", 2)
    pending = []
    with rig.writer(delay_max=0.001) as writer:
        for number in range(count):
            if number % ROUND == 0:
                writer.flush()
                print("ready", flush=True)
                sys.stdin.readline()
            value = f"{name}-{number}"
            pending.append((value, writer.send("shared", Record(value.encode(), value.encode()))))
            writer.send(f"own-{name}", Record(None, value.encode()), number % 2)
            if number % 5 == 0:
                writer.flush()
    results = [(value, one.result(WAIT_S)) for value, one in pending]
    print(json.dumps([[value, one.partition, one.offset, one.outcome] for value, one in results]))
    rig.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
