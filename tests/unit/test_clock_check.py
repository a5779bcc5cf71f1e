"""A wrong clock is detected at the start. A log that a wrong clock wrote is reported in every view for
operators."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from archiver.api import Writer
from archiver.config.settings import load_settings
from archiver.daemon.resources import Resources
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import Clock, ManualClock, SystemClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SystemIds
from archiver.status.advice import advice, verdict
from archiver.status.journal import Journal
from archiver.status.lag import LagReport
from intake.log.clock_check import check_start_clock, log_ahead_s
from tests.support.builders.deployment import Deployment
from tests.support.objects.memory_store import MemoryObjectStore

NOW_US = 1_700_000_000_000_000
SKEW_MAX_S = 10.0
YEARS_S = 9 * 365 * 86_400


class Stating(MemoryObjectStore):
    """A store whose server states a time."""

    def __init__(self, stated_us: int | None) -> None:
        super().__init__()
        self.stated_us = stated_us

    def time_us(self) -> int | None:
        return self.stated_us


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SystemClock:
    """The machine's clock, at a time that the test sets."""
    monkeypatch.setattr(SystemClock, "now_us", lambda _: NOW_US)
    return SystemClock()


@pytest.mark.parametrize("ahead_s", [SKEW_MAX_S + 2, 20, YEARS_S])
def test_a_clock_that_is_ahead_of_the_store_is_refused(now: SystemClock, ahead_s: float) -> None:
    with pytest.raises(RetryLater, match=r"ahead of the object store's.*clock_skew_max"):
        check_start_clock(Stating(NOW_US - round(ahead_s * 1e6)), now, 0, SKEW_MAX_S)


def test_a_wrong_clock_is_refused_though_the_log_agrees_with_it(now: SystemClock) -> None:
    """The clock itself wrote the newest time in the log, before the restart."""
    with pytest.raises(RetryLater, match="ahead"):
        check_start_clock(Stating(NOW_US - YEARS_S * 10**6), now, NOW_US - 1, SKEW_MAX_S)


@pytest.mark.parametrize("stated_us", [NOW_US, NOW_US - 10**7, NOW_US + 10**7, NOW_US - 999_999, None])
@pytest.mark.parametrize("newest_us", [0, NOW_US, NOW_US + YEARS_S * 10**6])
def test_a_clock_that_agrees_is_used_regardless_of_the_log(
    now: SystemClock, stated_us: int | None, newest_us: int
) -> None:
    """A log that an earlier clock drove ahead cannot be corrected, so it does not prevent a writer from
    starting."""
    check_start_clock(Stating(stated_us), now, newest_us, SKEW_MAX_S)


def test_a_clock_that_is_behind_needs_two_that_say_so(
    now: SystemClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Stating(NOW_US + 20 * 10**6)
    check_start_clock(store, now, NOW_US, SKEW_MAX_S)
    assert "20 s behind" in caplog.text
    with pytest.raises(RetryLater, match="intake log has later times too"):
        check_start_clock(store, now, NOW_US + 20 * 10**6, SKEW_MAX_S)


@pytest.mark.parametrize("clock", [ManualClock(NOW_US + YEARS_S * 10**6), ManualClock(5)])
def test_a_simulated_clock_is_compared_with_nothing(clock: Clock) -> None:
    check_start_clock(Stating(NOW_US), clock, 0, SKEW_MAX_S)


def test_a_folder_states_the_time_of_a_file_just_written(tmp_path: Path) -> None:
    before_us = time.time_ns() // 1000
    stated_us = LocalObjectStore(tmp_path).time_us()
    assert stated_us is not None
    assert before_us - 10**6 <= stated_us <= time.time_ns() // 1000 + 10**6, "file systems may cut the time"
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == [], "nothing is left behind"


def test_a_writer_whose_clock_is_ahead_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment(tmp_path)
    monkeypatch.setattr(LocalObjectStore, "time_us", lambda _: time.time_ns() // 1000)
    right = SystemClock.now_us
    monkeypatch.setattr(SystemClock, "now_us", lambda self: right(self) + YEARS_S * 10**6)
    with pytest.raises(RetryLater, match="ahead of the object store's"):
        Writer(deployment.config)


def test_a_daemon_whose_clock_is_ahead_takes_nothing_in(
    tmp_path: Path, now: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step `intake` of the start fails and is retried until the clock is right."""
    settings = load_settings(Deployment(tmp_path).config, {})
    opened = Resources(lambda: settings, {}, frozenset({"intake"}), now, SystemIds())
    monkeypatch.setattr(LocalObjectStore, "time_us", lambda _: NOW_US - YEARS_S * 10**6)
    steps = {step.name: step for step in opened.steps()}
    for name in ("objects", "metadata", "deployment"):
        steps[name].take()
    with pytest.raises(RetryLater, match="ahead of the object store's"):
        steps["intake"].take()
    monkeypatch.setattr(LocalObjectStore, "time_us", lambda _: NOW_US)
    steps["intake"].take()
    assert opened.writer is not None
    opened.close_intake()
    opened.close()


def test_how_far_a_log_is_ahead() -> None:
    assert log_ahead_s(NOW_US + 10_000_000, NOW_US, SKEW_MAX_S) is None
    assert log_ahead_s(NOW_US + 10_500_000, NOW_US, SKEW_MAX_S) == 10.5
    assert log_ahead_s(0, NOW_US, SKEW_MAX_S) is None


def test_the_page_does_not_say_that_all_is_well() -> None:
    journal = Journal(5)
    journal.becomes("serving")
    good = LagReport(NOW_US, (), ())
    assert advice(good, journal, NOW_US, 5.0) == []
    ahead = LagReport(NOW_US, (), (), NOW_US + 10**9, 1000.0)
    (one,) = advice(ahead, journal, NOW_US, 5.0)
    assert (one.severity, one.kind, one.section) == ("watch", "finding-log-ahead", "Finding log ahead")
    assert "1,000 s ahead" in one.what
    assert "All is well" not in verdict([one], "serving")


def test_a_log_that_is_ahead_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record was accepted while the clock was nine years ahead. `status` and `reconcile` report it, and a
    later record gets its time."""
    deployment = Deployment(tmp_path)
    right = SystemClock.now_us
    with monkeypatch.context() as wrong:
        wrong.setattr(SystemClock, "now_us", lambda self: right(self) + YEARS_S * 10**6)
        # The store has the clock of the same machine.
        wrong.setattr(LocalObjectStore, "time_us", lambda self: SystemClock().now_us())
        with Writer(deployment.config) as writer:
            writer.send("orders", b"x").result(30)
    status = deployment.cli("status", "--output", "json").json()
    assert [line for line in status["attention"] if "ahead of this machine's clock" in line] != []
    found = deployment.cli("reconcile", "--output", "json").json()
    assert [(one["id"], one["severity"]) for one in found["findings"]] == [("log-ahead", "warning")]
    with Writer(deployment.config) as writer:
        assert writer.send("orders", b"y").result(30).outcome == "ok", "it goes on"
