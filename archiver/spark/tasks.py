"""Distributes tasks to Spark's workers, for both kinds of job: refinement and the deep audit.

Each task has a Spark partition of its own and arrives as the same bytes. Tasks travel as an Arrow column.
From a list of rows PySpark would make an RDD, which its Python workers serialize again. Those workers have
other settings than the workers of `mapInArrow`. So Spark would keep a second parent process of Python workers
only for them (decision 0048).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def handed_out(session: SparkSession, tasks: Sequence[bytes]) -> DataFrame:
    """A column `task` of bytes; the index of a task is that of its Spark partition."""
    numbers: pa.Array[pa.Int32Scalar] = pa.array(range(len(tasks)), pa.int32())
    rows = pa.table({"number": numbers, "task": pa.array(tasks, pa.binary())})
    # By the id: a partitioning by hash would put several tasks into one partition.
    return session.createDataFrame(rows).repartitionById(len(tasks), sql.col("number")).select("task")
