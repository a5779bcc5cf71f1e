"""Fetches the packages and servers that tests use, unless they are there: `python -m
tests.support.servers.fetch_packages`.

Before the tests, so that a slow network counts against none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from archiver.catalog.engines import AWS_PACKAGE, SPARK_PACKAGES
from tests.support.catalog import rest_catalog
from tests.support.deploy import deploy_parts
from tests.support.events.event_judge import AVRO_OF, judge
from tests.support.kafka import java_programs, kafka_server
from tests.support.log import etcd_part
from tests.support.objects import s3_server
from tests.support.schema import real_registry
from tests.support.servers import browser, class_data, trino_server
from tests.support.servers.maven import jars

REPORT_EVERY_S = 1.0
"""What took less was there."""

JAVA: dict[str, Callable[[], object]] = {
    "Iceberg's REST catalog": partial(jars, *rest_catalog.PACKAGES),
    "Iceberg's REST catalog for S3": partial(jars, *rest_catalog.AWS_PACKAGES),
    "Iceberg's runtime for Spark": partial(jars, *SPARK_PACKAGES, AWS_PACKAGE),
    "the schema registry": partial(jars, real_registry.ARCHIVE),
    "s3proxy": partial(jars, s3_server.PACKAGE),
    "Kafka": partial(jars, *kafka_server.PACKAGES, transitive=True),
    "Kafka Streams": partial(jars, *java_programs.STREAMS, transitive=True),
    "Kafka Connect": lambda: [
        jars(*java_programs.CONNECT, transitive=True),
        jars(java_programs.CONNECT_FILE),
        java_programs.iceberg_sink(),
    ],
    "Spark's Kafka source": partial(jars, *java_programs.SPARK_SOURCE),
    "the Java classes of control events": lambda: [judge(release) for release in AVRO_OF],
    "Trino": trino_server.program,
}
CLASSES: dict[str, Callable[[], object]] = {
    "the classes of Spark": class_data.write_for_spark,
    "the classes of Kafka": partial(class_data.write_for, "kafka", kafka_server.KafkaServer),
    "the classes of Iceberg's REST catalog": partial(
        class_data.write_for, rest_catalog.CLASSES, rest_catalog.WarmCatalog
    ),
    "the classes of s3proxy": partial(class_data.write_for, "s3proxy", s3_server.S3Server),
}
"""Written when the packages are there."""

OTHERS: dict[str, Callable[[], object]] = {
    "etcd": etcd_part.fetch_or_tell,
    "Chromium": browser.fetch_or_tell,
    "promtool, kubeconform, Helm and Compose": deploy_parts.fetch_or_tell,
}


def main() -> None:
    """What comes from Maven waits for the network, what is built with Go for the processor: both at the same
    time."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(_fetched, parts) for parts in (JAVA | CLASSES, OTHERS)]:
            done.result()


def _fetched(parts: dict[str, Callable[[], object]]) -> None:
    for name, fetch in parts.items():
        began_s = time.monotonic()
        fetch()
        if (took_s := time.monotonic() - began_s) >= REPORT_EVERY_S:
            print(f"prepared {name} in {took_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
