"""A process that appends to a log in SQLite as fast as it can, to be raced or killed.

Run as `python -m tests.support.log.appender DATABASE OWNER COUNT SEED`. Entries are `OWNER-NUMBER:` and
filling of a random size. After each acknowledged append it writes `INDEX OWNER-NUMBER` and a newline to its
standard output, in one write.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from archiver.log.append_retry import append_until_known
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended
from archiver.runtime.clock import SystemClock


def main(database: str, owner: str, count: int, seed: int) -> None:
    """Append `count` entries, each at the tail, wherever others have moved it."""
    sizes = random.Random(seed)
    clock = SystemClock()
    log = SqliteLogStore(Path(database), busy_timeout_s=30.0, entry_bytes_max=512 * 1024).log("intake")
    for number in range(count):
        name = f"{owner}-{number}"
        entry = name.encode() + b":" + b"x" * sizes.choice((10, 300, 5_000, 30_000))
        index = log.tail()
        while (
            append_until_known(log, index, entry, attempts_max=10, backoff_s=0.01, clock=clock)
            is Appended.TAKEN
        ):
            index = log.tail()
        os.write(1, f"{index} {name}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
