"""How the limit of open files is raised and divided."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys

import pytest

from archiver.daemon.limits import LIMIT_MAX, RESERVE, connections_within

RAISED = (
    "import resource as r; from archiver.daemon.limits import raise_limit; print(raise_limit(), "
    "*r.getrlimit(r.RLIMIT_NOFILE))"
)


def raised(soft: int, hard: int) -> list[int]:
    """The log line and the limit afterwards, in a separate process."""
    program = f"ulimit -Sn {soft} && ulimit -Hn {hard} && exec {sys.executable} -c '{RAISED}'"
    done = subprocess.run(["sh", "-c", program], check=True, capture_output=True, text=True)
    return [int(one) for one in done.stdout.split()]


def test_the_soft_limit_is_raised_to_the_hard_one_within_a_bound() -> None:
    assert raised(256, 1000) == [1000, 1000, 1000]
    assert raised(1000, 1000) == [1000, 1000, 1000]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most == resource.RLIM_INFINITY or most > LIMIT_MAX:
        assert raised(1024, LIMIT_MAX + 1) == [LIMIT_MAX, LIMIT_MAX, LIMIT_MAX + 1]
        assert raised(LIMIT_MAX + 1, LIMIT_MAX + 1) == [LIMIT_MAX + 1] * 3, "it is never lowered"


@pytest.mark.parametrize(
    ("limit", "connections"),
    [
        (LIMIT_MAX, 2000),
        (2000 + RESERVE, 2000),
        (2000 + RESERVE - 1, 1999),
        (1024, 512),
        (1000, 500),
        (64, 32),
        (1, 1),
    ],
)
def test_a_reserve_is_left(limit: int, connections: int, caplog: pytest.LogCaptureFixture) -> None:
    assert connections_within(limit, 2000) == connections
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == (connections < 2000)
    assert all(f"at most {connections} connections instead of 2000" in record.getMessage() for record in said)
