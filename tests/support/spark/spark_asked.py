"""A program of its own: Spark SQL on the catalogs that its settings name.

`python spark_asked.py SETTINGS_JSON JARS`. Reads one JSON object a line, `{"sql": STATEMENT, "into": FILE}`;
leaves the rows there as an Arrow file, and answers with a line: `{"metrics": {...}}`, what the scans of
Iceberg tables say they planned, added up, or `{"error": …}`. Ends with its standard input. Uses none of the
project's code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

METRICS = ("resultDataFiles", "skippedDataFiles")


def main(settings: str, jars: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # No other output comes between the answers.
    spark = _started(json.loads(settings), jars)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            frame: Any = spark.sql(asked["sql"])
            rows = frame.toArrow()
            with pa.OSFile(asked["into"], "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
            answer: dict[str, object] = {"metrics": _metrics(frame._jdf.queryExecution().executedPlan())}
        except Exception as error:  # noqa: BLE001 - the test wants to see what the engine says
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


def _started(settings: dict[str, str], jars: str) -> SparkSession:
    settings |= {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        # Without adaptive execution the plan itself has the metrics of its scans.
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _metrics(plan: Any) -> dict[str, int]:
    leaves, found = plan.collectLeaves(), dict.fromkeys(METRICS, 0)
    for place in range(leaves.size()):
        metrics = leaves.apply(place).metrics()
        for name in METRICS:
            if metrics.contains(name):
                found[name] += metrics.apply(name).value()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
