"""What holds for all tests: the order in which files go to the processes that share a run, and that no test
sees the secrets of another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

from archiver.runtime import redaction
from archiver.runtime.redaction import Redactor
from tests.support.amount import WHOLE
from tests.support.servers import class_data

settings.register_profile("here", deadline=None)  # how long an example takes is the machine's matter
settings.load_profile("here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it runs in the background, and what tests start would inherit it: no interrupt
    # would ever arrive there.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.update(class_data.for_spark())

DAY_S = 86_400
BEFORE_MIDNIGHT_S = 60
LONGEST = (
    *("tests/system/test_soak.py", "tests/system/test_serve_spark_lost.py", "tests/system/test_installed.py"),
    *(
        "tests/fault/sweep/test_sweep.py",
        "tests/fault/sweep/test_sweep_spark.py",
        "tests/integration/test_foreign_spark_tools.py",
    ),
    *(
        "tests/integration/test_queries.py",
        "tests/system/test_backup_drills.py",
        "tests/system/test_benches.py",
    ),
    *("tests/integration/test_spark_connect.py", "tests/integration/test_spark_cluster.py"),
    *("tests/system/test_bucket_two_daemons.py", "tests/system/test_mirror_two_daemons.py"),
    *("tests/simulation/publish/test_publish_shares.py", "tests/simulation/test_simulation.py"),
)
"""Minutes each: begun last, one of them would run alone at the end."""


@pytest.fixture(autouse=True)
def secrets_of_its_own() -> Iterator[None]:
    """What a test tells this process to hide is not hidden in the texts of the tests behind it; one may have
    the secret `x`."""
    before = redaction._process
    redaction._process = Redactor(before._secrets)
    yield
    redaction._process = before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Begin no test right before midnight UTC: archives are cut by the day, and many tests count them."""
    left_s = DAY_S - time.time() % DAY_S
    if left_s < BEFORE_MIDNIGHT_S:
        time.sleep(left_s + 1)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` plays, and put the longest files first; the order is random
    otherwise.
    """
    if not WHOLE:
        left_out = [item for item in items if item.get_closest_marker("whole")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
