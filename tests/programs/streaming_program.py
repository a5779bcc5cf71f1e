"""A program of its own: Spark Structured Streaming from a Kafka topic to an Iceberg table, as its documentation has it.

`python streaming_program.py SERVERS CLIENT TOPIC FOLDER JARS` runs until its input ends or it is killed. Begun again
with the same folder, it goes on from the checkpoint there.
"""

from __future__ import annotations

import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

TABLE = "local.db.rows"
POLL_S = 0.2
SPARK_DEFECT = "scala.Option.get()"
"""After a batch that a kill had interrupted, Kafka's source of Spark 4.1.1 fails in its metrics, with a null pointer. The
batch is committed by then, so the query can be started again."""


def main(servers: str, client: str, topic: str, folder: str, jars: str) -> None:
    """Run the query."""
    conf = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": f"{folder}/warehouse",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    columns = "partition int, offset long, key string, value string"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) USING iceberg")
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.client.id": client,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
        # Java's admin client waits so long for a broker that died; 60 s by default.
        "kafka.request.timeout.ms": "5000",
        "kafka.default.api.timeout.ms": "10000",
    }
    records = spark.readStream.format("kafka").options(**options).load()
    writer = (
        records.selectExpr("partition", "offset", "CAST(key AS STRING) key", "CAST(value AS STRING) value")
        .writeStream.format("iceberg")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="200 milliseconds")
    )
    input_ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(input_ended,), daemon=True).start()
    query: StreamingQuery = writer.toTable(TABLE)
    restarts_left = 1
    while not input_ended.wait(POLL_S):
        error = query.exception()
        if error is not None:
            if SPARK_DEFECT not in str(error) or not restarts_left:
                raise error
            restarts_left -= 1
            query = writer.toTable(TABLE)
    query.stop()
    assert query.exception() is None, query.exception()
    spark.stop()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
