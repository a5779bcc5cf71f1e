"""Hands tasks to Spark's workers: what both of our kinds of job, refinement and the deep audit, begin with.

Promises that each task has a Spark partition of its own and comes as the bytes it was. They travel as a
column of Arrow: from a list of rows PySpark makes an RDD that its Python workers write anew, and because
those run with other settings than the workers of `mapInArrow`, Spark keeps a second parent of Python workers
for nothing else (decision 0048).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def handed_out(session: SparkSession, tasks: Sequence[bytes]) -> DataFrame:
    """A column `task` of bytes; the number of a task is that of its Spark partition."""
    numbers: pa.Array[pa.Int32Scalar] = pa.array(range(len(tasks)), pa.int32())
    rows = pa.table({"number": numbers, "task": pa.array(tasks, pa.binary())})
    return session.createDataFrame(rows).repartitionById(len(tasks), sql.col("number")).select("task")
