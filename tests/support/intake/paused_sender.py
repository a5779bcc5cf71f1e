"""A writer that stops itself between the upload of an intake file and the append of its entry.

Run as `python -m tests.support.intake.paused_sender ROOT`. For each line on its standard input it sends one
record of that value to the topic `paused`. It prints the outcome as JSON. A value that begins with `pause`
stops the process (SIGSTOP) when its file is stored; the test continues it to get the answer.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from archiver.config.groups import LogSettings
from archiver.runtime.ids import SystemIds
from intake.log.checkpoint import CheckpointStore
from intake.log.sequencer import Sequencer
from intake.records import Record
from tests.support.intake.intake_rig import WAIT_S, IntakeRig


def main(root: str) -> None:
    """Send line by line."""
    rig = IntakeRig(Path(root), LogSettings(append_backoff=0.001))
    rig.sequencer = Sequencer(rig.log, SystemIds(), rig.clock, rig.log_settings, CheckpointStore(rig.objects))
    rig.topic("paused", 1)
    pausing = False
    stored = rig.objects.create

    def create(key: str, data: bytes) -> None:
        stored(key, data)
        if pausing and key.startswith("intake/"):
            # To this thread: sent to the process, the signal would let it run on for a moment, into the log's
            # transaction.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    rig.objects.create = create  # type: ignore[method-assign]
    with rig.writer(delay_max=0.001) as writer:
        print("ready", flush=True)
        for line in sys.stdin:
            value = line.strip()
            pausing = value.startswith("pause")
            done = writer.send("paused", Record(None, value.encode()), 0).result(WAIT_S)
            print(
                json.dumps(
                    {"value": value, "outcome": done.outcome, "offset": done.offset, "error": str(done.error)}
                ),
                flush=True,
            )
    rig.close()


if __name__ == "__main__":
    main(sys.argv[1])
