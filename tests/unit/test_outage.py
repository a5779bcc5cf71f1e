"""An outage costs one line when it begins and one when it ends, however many attempts are made."""

from __future__ import annotations

import logging

import pytest

from archiver.runtime.clock import ManualClock
from intake.sources.kafka.mirror import BACK_AFTER_S, REASONS_MAX, Outage

LOG = logging.getLogger("outage-test")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.INFO]


def test_one_line_for_each_change_of_state(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outage = Outage("s", clock, LOG)
    outage.worked()
    for number in range(200):
        outage.failed(f"no answer within {number} ms")
        clock.sleep(0.2)
        outage.worked()  # For a moment, every second attempt works.
        clock.sleep(0.2)
    assert len(lines(caplog)) == 1
    clock.sleep(BACK_AFTER_S)
    outage.worked()
    outage.worked()
    assert lines(caplog)[1:] == ["source s: works again after 80 s"]
    outage.failed("no answer within 3 ms")
    assert len(lines(caplog)) == 3, "the next outage is news"


def test_another_reason_is_logged_and_their_number_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("s", ManualClock(), LOG)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        outage.failed(letter)
        outage.failed(letter)
    assert len(lines(caplog)) == REASONS_MAX
