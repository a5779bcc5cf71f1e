"""One Spark session for all tests of a run that need Spark.

`from tests.support.spark.spark import spark_session, spark_sessions` in a test file makes the fixtures known
there. The JVM takes seconds to start, so it is kept for the whole run; a part of the product that starts a
session in the same process gets this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions


@pytest.fixture(scope="session")
def spark_sessions() -> Iterator[SparkSessions]:
    """Sessions on local[2], as the product builds them."""
    sessions = SparkSessions(SparkSettings(master="local[2]", driver_memory="1g"), os.environ)
    yield sessions
    sessions.close()


@pytest.fixture(scope="session")
def spark_session(spark_sessions: SparkSessions) -> SparkSession:
    """The running session."""
    return spark_sessions.session()
