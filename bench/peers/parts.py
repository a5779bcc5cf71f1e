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
    """Return the jars that Spark needs in addition to pyspark: Iceberg's runtime, its catalog's
    driver, and the Kafka source.
    """
    return jars(*SPARK_PACKAGES, *SPARK_SOURCE)


def worker_classpath() -> list[Path]:
    """Return the classpath of a Kafka Connect worker with the converters."""
    return [converter(), *jars(*CONNECT, transitive=True), *jars(PROTOBUF)]


def sink_classpath() -> list[Path]:
    """Return the jars of Iceberg's sink, a plugin with its own class loader. It needs Hadoop's
    client, because its files are in a folder.
    """
    return [
        *jars(*ICEBERG_SINK, transitive=True),
        *jars(SQLITE_PACKAGE),
        *spark_jars("hadoop-client-api", "hadoop-client-runtime"),
    ]


def fetch() -> None:
    """Download all packages that are missing."""
    spark_classpath()
    worker_classpath()
    sink_classpath()


def converter() -> Path:
    """Return the folder with the compiled converters and the service file by which a worker finds
    them.
    """
    needed = [*jars(PROTOBUF), *jars(*CONNECT, transitive=True)]
    services = {"META-INF/services/org.apache.kafka.connect.storage.Converter": f"{CONVERTER}\n{BY_SCHEMA}\n"}
    return compiled("bench-peers/converter", SOURCES, needed, services)
