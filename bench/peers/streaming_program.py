"""Copies topics from Kafka to Iceberg with Spark Structured Streaming, as a typical user would
write it.

`python streaming_program.py SETTINGS`, a JSON object. Reads one JSON object a line, `{"topic",
"table", "checkpoint", "trigger_records"}`, copies the topic's current records, and answers with
`{"batches": N}` or `{"error": TEXT}`. Ends with its standard input.

ptars decodes the values in a Python worker, one Arrow batch at a time.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

SCHEMA = (
    "id long, customer string, state string, created timestamp, "
    "lines array<struct<sku: string, quantity: int, price_cents: long>>, tags map<string, string>, "
    "total double, gift boolean"
)


def decoder(
    descriptor_set: bytes, message: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that decodes values into the columns of the message."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import ptars
        from google.protobuf import descriptor_pb2, descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            pool.Add(file)  # type: ignore[no-untyped-call]
        found = pool.FindMessageTypeByName(message)  # type: ignore[no-untyped-call]
        config = ptars.PtarsConfig(timestamp_unit="us", enum_repr="string")
        handler = ptars.HandlerPool([found.file], config=config).get_for_message(found)
        for batch in batches:
            yield handler.array_to_record_batch(batch.column(0))

    return decode


def main(settings: dict[str, Any]) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not mix with the answers
    builder = SparkSession.builder.master(settings["master"])
    for name, value in settings["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    decode = decoder(base64.b64decode(settings["descriptor_set"]), settings["message"])
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {
                "batches": taken_in(spark, settings["brokers"], decode, json.loads(line))
            }
        except Exception as error:  # noqa: BLE001 - the bench reports it
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


def taken_in(spark: SparkSession, brokers: str, decode: Any, asked: dict[str, Any]) -> int:
    """Copy the topic's current records; return the number of batches."""
    options = {"kafka.bootstrap.servers": brokers, "subscribe": asked["topic"], "startingOffsets": "earliest"}
    if asked["trigger_records"] is not None:
        options["maxOffsetsPerTrigger"] = str(asked["trigger_records"])
    values = spark.readStream.format("kafka").options(**options).load().select("value")
    writer = (
        values.mapInArrow(decode, SCHEMA)
        .writeStream.format("iceberg")
        .outputMode("append")
        .trigger(availableNow=True)
    )
    query = writer.option("checkpointLocation", asked["checkpoint"]).toTable(asked["table"])
    query.awaitTermination()
    return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
