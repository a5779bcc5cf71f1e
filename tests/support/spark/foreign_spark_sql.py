"""A separate program: an external Spark, with Iceberg's runtime, that runs statements on the tables of
deployments.

`python foreign_spark_sql.py JARS`. Reads one JSON object a line, `{"folder": DEPLOYMENT, "sql": STATEMENT}`,
and answers each with a line: `{"rows": [...]}` with the rows as lists, or `{"error": TEXT}`. Ends with its
standard input. Uses none of the project's code. The catalog is called `local` and is what the deployment's
configuration names: tables of a SQL catalog on SQLite.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession


def main(jars: str) -> None:
    """Answer until the input ends; one session for each folder, because a session holds its catalogs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # No other output comes between the answers.
    spark = _started(jars)
    sessions: dict[str, SparkSession] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        folder = asked["folder"]
        if folder not in sessions:
            sessions[folder] = _session(spark, folder)
        try:
            answer: dict[str, object] = {
                "rows": [list(row) for row in sessions[folder].sql(asked["sql"]).collect()]
            }
        except Exception as error:  # noqa: BLE001 - the test wants to see what an engine says
            answer = {"error": str(error)}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()
    spark.stop()


def _started(jars: str) -> SparkSession:
    settings = {
        "spark.jars": jars,
        # Partition fields, write orders and distributions are changed by statements that these bring.
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _session(spark: SparkSession, folder: str) -> SparkSession:
    session, catalog = spark.newSession(), "spark.sql.catalog.local"
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{catalog}.type", "jdbc")
    session.conf.set(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db")
    session.conf.set(f"{catalog}.jdbc.schema-version", "V1")
    session.conf.set(f"{catalog}.warehouse", f"{folder}/data")
    # The external catalog is asked each time: the archiver commits between two statements.
    session.conf.set(f"{catalog}.cache-enabled", "false")
    session.conf.set("spark.sql.defaultCatalog", "local")
    return session


if __name__ == "__main__":
    main(*sys.argv[1:])
