"""Fetches the packages and servers that tests use, unless they are there: `python -m tests.support.fetch_packages`.

Before the tests, so that a slow network counts against none of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from archiver.catalog.engines import AWS_PACKAGE, SPARK_PACKAGES
from tests.support import deploy_parts, etcd_part, kafka_server, real_registry, rest_catalog, s3_server, trino_server
from tests.support.event_judge import AVRO_OF, judge
from tests.support.maven import jars


def main() -> None:
    """What comes from Maven waits for the network, what is built with Go for the processor: both at the same time."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(_java), pool.submit(_others)]:
            done.result()


def _java() -> None:
    for packages in (
        rest_catalog.PACKAGES,
        rest_catalog.AWS_PACKAGES,
        SPARK_PACKAGES,
        (AWS_PACKAGE,),
        (real_registry.ARCHIVE,),
        (s3_server.PACKAGE,),
    ):
        jars(*packages)
    jars(*kafka_server.PACKAGES, transitive=True)
    for release in AVRO_OF:
        judge(release)
    trino_server.program()


def _others() -> None:
    etcd_part.fetch_or_tell()
    deploy_parts.fetch_or_tell()


if __name__ == "__main__":
    main()
