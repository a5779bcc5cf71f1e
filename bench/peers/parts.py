"""What the peers are made of: their packages, fetched as those of the tests are, and the Java classes of
ours, compiled.
"""

from __future__ import annotations

from pathlib import Path

from archiver.catalog.engines import SPARK_PACKAGES, SQLITE_PACKAGE
from tests.support.kafka import kafka_server
from tests.support.servers.maven import compiled, jars, spark_jars

SPARK_KAFKA = (
    *(f"org.apache.spark:spark-{name}-kafka-0-10_2.13:4.1.1" for name in ("sql", "token-provider")),
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""The newest of Spark 4.1 of which both halves can be had; the others are what it was built with."""
SINK = tuple(f"org.apache.iceberg:iceberg-{name}:1.12.0" for name in ("kafka-connect", "parquet"))
"""Parquet is in its distribution, and not among what its package says that it needs."""
WORKER = ("org.apache.kafka:connect-runtime:4.3.1", kafka_server.PACKAGES[1])
"""Of the broker's release."""
PROTOBUF = "com.google.protobuf:protobuf-java:4.33.0"
CONVERTER, BY_SCHEMA = "benchpeers.OrderConverter", "benchpeers.SchemaConverter"
SOURCES = Path(__file__).with_name("java")


def spark_classpath() -> list[Path]:
    """What Spark needs besides pyspark: Iceberg's runtime, the driver of its catalog, and its Kafka
    source.
    """
    return jars(*SPARK_PACKAGES, *SPARK_KAFKA)


def worker_classpath() -> list[Path]:
    """A worker of Kafka Connect, and the converters."""
    return [converter(), *jars(*WORKER, transitive=True), *jars(PROTOBUF)]


def sink_classpath() -> list[Path]:
    """Iceberg's sink, a plugin of the worker with class loader of its own; its files lie in a folder, which
    needs Hadoop's client.
    """
    return [
        *jars(*SINK, transitive=True),
        *jars(SQLITE_PACKAGE),
        *spark_jars("hadoop-client-api", "hadoop-client-runtime"),
    ]


def fetch() -> None:
    """Everything, unless it is there."""
    spark_classpath()
    worker_classpath()
    sink_classpath()


def converter() -> Path:
    """The folder with the compiled classes, and what lets a worker find them."""
    needed = [*jars(PROTOBUF), *jars(*WORKER, transitive=True)]
    services = {"META-INF/services/org.apache.kafka.connect.storage.Converter": f"{CONVERTER}\n{BY_SCHEMA}\n"}
    return compiled("bench-peers/converter", SOURCES, needed, services)
