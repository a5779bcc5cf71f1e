"""A process that forks one actor after the other: `python -m tests.fault.sweep.fork_host`.

An actor can be killed and stopped like any process of the product, and begins within milliseconds, because
everything is imported before the fork. Takes a line of JSON for each actor on standard input (`Orders`).
Prints a line when the actor has `began`, when it `stopped` and with what code it `ended` (negative: the
signal). Owns no thread, so that nothing is lost in a fork. No process outlives the test: the host ends with
the process that started it, and the actor with the host.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401

# So that no actor has to.
from tests.fault.sweep.deeds import Orders, perform

_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Where the system can do that (Linux)."""
    prctl: Any = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(**reported: int) -> None:
    sys.stdout.write(json.dumps(reported) + "\n")
    sys.stdout.flush()


def _act(orders: Orders) -> int:
    """In the child: with its own output, and none of the host's."""
    _end_with_parent()
    output = os.open(orders.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return perform(orders)


def _follow(pid: int) -> None:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            _tell(ended=os.waitstatus_to_exitcode(status))
            return
        _tell(stopped=os.WSTOPSIG(status))


def main() -> int:
    """Until its input ends."""
    _end_with_parent()
    with open(0, "rb", buffering=0, closefd=False) as lines:  # an actor must not inherit what is read ahead
        for line in iter(lines.readline, b""):
            orders = Orders(**json.loads(line))
            pid = os.fork()
            if pid == 0:
                return _act(orders)
            _tell(began=pid)
            _follow(pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
