"""A process that ingests files: `python -m tests.support.intake.source_process ROOT FORMAT FAILPOINTS`.

The log, the objects and the folder `in` are below ROOT.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime import failpoints
from tests.support.intake.file_sources import Inbox, Taker

ENTRIES = 4
"""Between two checkpoints."""
BYTES = 300
"""Of a piece."""
LOOKS = 5


def process(inbox: Inbox, form: str) -> Taker:
    """Small pieces, many checkpoints."""
    return inbox.process(form, text=form == "jsonl", delay_max_bytes=BYTES, checkpoint_entries=ENTRIES)


def main(root: str, form: str, armed: str) -> None:
    """Poll some times."""
    logs = SqliteLogStore(Path(root) / "metadata.db", 30, 512 * 1024)
    taker = process(
        Inbox(Path(root), logs.log("intake"), LocalObjectStore(Path(root) / "data"), os.getpid()), form
    )
    failpoints.arm(armed)
    for _ in range(LOOKS):
        taker.look()
        taker.checkpointer.run_if_due()
    print(taker.state)
    logs.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
