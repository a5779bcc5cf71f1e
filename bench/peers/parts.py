"""Fetches the packages that the peers need, as for the tests, and compiles the project's Java
classes.
"""

from __future__ import annotations

from pathlib import Path

from archiver.catalog.engines import SPARK_PACKAGES, SQLITE_PACKAGE
from tests.support.kafka.java_programs import CONNECT, ICEBERG_SINK, SPARK_SOURCE
from tests.support.servers.maven import compiled, jars, spark_jars

PROTOBUF = "com.google.protobuf:protobuf-java:4.33.0"
CONVERTER, BY_SCHEMA = "benchpeers.OrderConverter", "benchpeers.SchemaConverter"
SOURCES = Path(__file__).with_name("java")


def spark_classpath() -> list[Path]:
    """What Spark needs besides pyspark: Iceberg's runtime, the driver of its catalog, and its Kafka
    source.
    """
    return jars(*SPARK_PACKAGES, *SPARK_SOURCE)


def worker_classpath() -> list[Path]:
    """A worker of Kafka Connect, and the converters."""
    return [converter(), *jars(*CONNECT, transitive=True), *jars(PROTOBUF)]


def sink_classpath() -> list[Path]:
    """Iceberg's sink, a plugin of the worker with class loader of its own; its files lie in a folder, which
    needs Hadoop's client.
    """
    return [
        *jars(*ICEBERG_SINK, transitive=True),
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
    needed = [*jars(PROTOBUF), *jars(*CONNECT, transitive=True)]
    services = {"META-INF/services/org.apache.kafka.connect.storage.Converter": f"{CONVERTER}\n{BY_SCHEMA}\n"}
    return compiled("bench-peers/converter", SOURCES, needed, services)
