"""A thread that waits for Spark receives SIGINT at any moment."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from archiver.runtime.errors import RetryLater
from archiver.spark.watchdog import run_in_thread
from tests.support.builders.deployment import ROOT

NAME = "asks-spark"

INTERRUPTED = """
import random, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from archiver.spark.watchdog import run_in_thread

signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
rng = random.Random(62)
latest_s = 0.0
for _ in range(300):
    over, began_s = threading.Event(), time.monotonic()
    try:
        # Once more if nobody heard it: Python drops what comes in the middle of a weak reference's callback.
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 8e-4), 0.5)
        run_in_thread(lambda: over.wait(100), over.set, "asks-spark")
        print("nobody was interrupted")
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
    latest_s = max(latest_s, time.monotonic() - began_s)
    over.set()  # the alarm may have come before all of it
while any(thread.name == "asks-spark" and thread.is_alive() for thread in threading.enumerate()):
    time.sleep(0.05)
print("in time" if latest_s < 10 else latest_s)
"""

SECOND = """
import signal, threading, time
from archiver.spark.watchdog import run_in_thread

signal.signal(signal.SIGINT, signal.default_int_handler)

def again():
    signal.setitimer(signal.ITIMER_REAL, 0.1)

signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
again()
try:
    run_in_thread(threading.Event().wait, again, "asks-spark")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_what_the_other_thread_answers_or_raises() -> None:
    given_up: list[bool] = []

    def give_up() -> None:
        given_up.append(True)

    def fail() -> None:
        raise RetryLater("later")

    thread = run_in_thread(threading.current_thread, give_up, NAME)
    assert (thread.name, thread.daemon) == (NAME, True), "the end of the process does not wait for it"
    with pytest.raises(RetryLater, match="later"):
        run_in_thread(fail, give_up, NAME)
    assert not given_up


@pytest.mark.parametrize(
    ("program", "said"),
    [(INTERRUPTED, "in time\n"), (SECOND, "interrupted\n")],
    ids=["at any moment", "twice"],
)
def test_an_interrupt_gives_up_and_a_second_one_leaves(program: str, said: str) -> None:
    """The call does not wait for the work itself, which takes longer than a test."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr[-2000:]
