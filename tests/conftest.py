"""What holds for all tests: the order in which files go to the processes that share a run, when the garbage
collector runs, and that no test sees the secrets of another."""

from __future__ import annotations

import gc
import os
import signal
import time
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from archiver.runtime import redaction
from archiver.runtime.redaction import Redactor
from tests.support.amount import BUSY, DAY, DAY_S, WHOLE, names_files, not_today
from tests.support.servers import class_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from archiver.spark.session import SparkSessions
    from tests.support.catalog.rest_catalog import RestCatalog
    from tests.support.objects.s3_server import S3Server

settings.register_profile("here", deadline=None)  # how long an example takes is the machine's matter
settings.load_profile("here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it runs in the background, and what tests start would inherit it: no interrupt
    # would ever arrive there.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.update(class_data.for_spark())

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
    "tests/programs/",
    *("tests/simulation/publish/test_publish_shares.py", "tests/simulation/test_simulation.py"),
)
"""Minutes each: begun last, one of them would run alone at the end."""
PARTS = {
    "tests/fault/sweep/test_sweep.py": 6,
    "tests/fault/sweep/test_sweep_spark.py": 3,
    "tests/integration/test_random_histories.py": 3,
}
"""Files of many cases that wait longer than they compute: how many processes may share one. Any other file has one."""


@pytest.fixture(autouse=True)
def secrets_of_its_own() -> Iterator[None]:
    """What a test tells this process to hide is not hidden in the texts of the tests behind it; one may have
    the secret `x`."""
    before = redaction._process
    redaction._process = Redactor(before._secrets)
    yield
    redaction._process = before


@pytest.fixture(scope="session")
def spark_sessions() -> Iterator[SparkSessions]:
    """Sessions on local[2], as the product builds them.

    A JVM takes seconds to start, so one is kept for the whole run. A part of the product that starts a session in this
    process gets this one.
    """
    # These fixtures import when a test asks for them: a run of unit tests needs neither Spark nor a server.
    from archiver.config.settings import SparkSettings
    from archiver.spark.session import SparkSessions

    sessions = SparkSessions(SparkSettings(master="local[2]", driver_memory="1g"), os.environ)
    yield sessions
    sessions.close()


@pytest.fixture(scope="module")
def spark_session(spark_sessions: SparkSessions) -> SparkSession:
    """The running session. Tests of other modules end Spark, so it is asked for again in each module."""
    return spark_sessions.session()


@pytest.fixture(scope="module")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    """One running catalog for the tests of a module; they keep apart by the names of their namespaces."""
    from tests.support.catalog.rest_catalog import RestCatalog

    with RestCatalog(tmp_path_factory.mktemp("rest-catalog")) as catalog:
        catalog.warm_up()
        yield catalog


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One running server for the tests of a module; they keep apart by their buckets."""
    from tests.support.objects.s3_server import S3Server

    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Begin no test right before midnight UTC: archives are cut by the day, and many tests count them."""
    left_s = DAY_S - time.time() % DAY_S
    if left_s < BEFORE_MIDNIGHT_S:
        time.sleep(left_s + 1)
    return (yield)


def pytest_report_header() -> str:
    """The day, so that a failure in a share can be played again."""
    return f"shares of day {DAY}: ARCHIVER_TESTS_DAY={DAY} plays them again"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Distribute files, and parts of those in `PARTS`."""
    from xdist.scheduler import LoadFileScheduling

    class FilesAndParts(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return f"{file}#{zlib.crc32(nodeid.encode()) % PARTS.get(file, 1)}"

    return FilesAndParts(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[Any]:
    """Collect without the garbage collector, and leave what is made then out of every later pass of it.

    Collecting makes 650,000 objects that stay until the end; a full pass would read them all.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` plays and what another day plays, extend the time limits, and put the
    longest files first; the order is random otherwise.
    """
    if not WHOLE:
        left_out = {item for item in items if item.get_closest_marker("whole")}
        if not names_files(config.args):
            left_out |= set(not_today(items))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if (limit := item.get_closest_marker("timeout")) is not None:
            item.add_marker(pytest.mark.timeout(BUSY * limit.args[0]), append=False)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
