"""The programs on top of Kafka that tests and benches run against the listener: their packages, and how a Java program
is started.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # its __init__ has no __all__
from pyiceberg.table import StaticTable

from archiver.spark.java import require_java
from tests.support.builders.deployment import Deployment
from tests.support.kafka.kafka_server import PACKAGES
from tests.support.process.processes import Command
from tests.support.servers.maven import jars, spark_jars

RELEASE = PACKAGES[0].rpartition(":")[2]
"""Of Kafka."""
LOGGING = PACKAGES[1]
STREAMS = (f"org.apache.kafka:kafka-streams:{RELEASE}", LOGGING)
CONNECT = (f"org.apache.kafka:connect-runtime:{RELEASE}", LOGGING)
"""A worker of Kafka Connect."""
CONNECT_FILE = f"org.apache.kafka:connect-file:{RELEASE}"
"""Its connectors for files."""
ICEBERG_SINK = tuple(f"org.apache.iceberg:iceberg-{name}:1.12.0" for name in ("kafka-connect", "parquet"))
"""Parquet is in its distribution, and not among what its package says that it needs."""
SPARK_SOURCE = (
    *(f"org.apache.spark:spark-{name}-kafka-0-10_2.13:4.1.1" for name in ("sql", "token-provider")),
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""The newest of Spark 4.1 of which both halves can be had; the others are what it was built with."""
_LOG4J = """<Configuration status="WARN"><Appenders><Console name="out" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %m (%c)%n%throwable{6}"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def java(
    deployment: Deployment, scratch: Path, classpath: Sequence[Path], *arguments: str, memory_mb: int = 256
) -> Command:
    """A Java program, begun; the first of the arguments is its main class. It ends with this process."""
    scratch.mkdir()
    (scratch / "log4j2.xml").write_text(_LOG4J)
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        str(require_java(os.environ).executable),
        f"-Xmx{memory_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={scratch / 'log4j2.xml'}",
        "-cp",
        os.pathsep.join(map(str, classpath)),
    ]
    return Command(deployment, *arguments, scratch=scratch, program=command)


def iceberg_sink() -> list[Path]:
    """The classpath of Iceberg's sink for Kafka Connect. Tables in a folder need Hadoop's client."""
    return [
        *jars(*ICEBERG_SINK, transitive=True),
        *spark_jars("hadoop-client-api", "hadoop-client-runtime"),
    ]


def iceberg_rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table in a folder, as a Hadoop catalog keeps it; none if there is no table yet."""
    hint = table / "metadata" / "version-hint.text"
    if not hint.exists():
        return []
    found = StaticTable.from_metadata(str(hint.with_name(f"v{hint.read_text().strip()}.metadata.json")))
    read = found.scan(selected_fields=columns).to_arrow().to_pydict()
    return sorted(zip(*(read[name] for name in columns), strict=True))


def cleanup_policies(servers: str, *topics: str) -> set[str]:
    """The config `cleanup.policy` of topics that programs have created."""
    client = AdminClient({"bootstrap.servers": servers})
    asked = client.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in topics])
    return {one.result(30)["cleanup.policy"].value for one in asked.values()}
