"""Appends to the intake log in etcd: `python -m tests.support.log.etcd_appender ADDRESSES FOLDER NAME COUNT
[PAUSE_S]`.

Prints a line for each entry that is settled: index and text. An entry that is not settled in time ends the
process with another code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from archiver.log.append_retry import append_until_known
from archiver.log.store import Appended
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import RetryLater
from tests.support.log.etcd_stores import access_to, store_of

TIMEOUT_S = 2.0
ATTEMPTS_MAX = 200
BACKOFF_S = 0.02


def main() -> None:
    """Append them all, while other processes append as well."""
    addresses, folder, name, count = sys.argv[1].split(","), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    pause_s = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    clock = SystemClock()
    folder.mkdir(exist_ok=True)
    log = store_of(access_to(addresses, TIMEOUT_S), folder).log("intake")
    next_index = 0
    for number in range(count):
        text = f"{name}-{number}"
        tried = 0
        while True:
            try:
                next_index = max(next_index, log.tail())
                if (
                    append_until_known(log, next_index, text.encode(), ATTEMPTS_MAX, BACKOFF_S, clock)
                    is Appended.OK
                ):
                    break
            except RetryLater:
                # Certainly not appended: it may go elsewhere.
                tried += 1
                assert tried < ATTEMPTS_MAX
                clock.sleep(BACKOFF_S)
        print(next_index, text, flush=True)
        next_index += 1
        clock.sleep(pause_s)


if __name__ == "__main__":
    main()
