"""Mutual exclusion: a caller that cannot acquire the lock in time gets RetryLater, and a failure releases the
lock."""

from __future__ import annotations

import threading

import pytest

from archiver.daemon.daemon import acquire_with_timeout
from archiver.runtime.errors import RetryLater


def test_who_cannot_have_it_in_time_learns_why() -> None:
    lock = threading.Lock()
    with acquire_with_timeout(lock, 0.01, "why"):
        with pytest.raises(RetryLater, match=r"^why$"), acquire_with_timeout(lock, 0.01, "why"):
            pytest.fail("two at a time")
        assert lock.locked(), "it is still the first one's"
    assert not lock.locked()


def test_a_failure_lets_go_of_it() -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match="mine"), acquire_with_timeout(lock, 0.01, "why"):
        raise ValueError("mine")
    assert not lock.locked()
