"""Fetches the Java packages that tests use, unless they are there: `python -m tests.support.fetch_packages`.

Before the tests, so that a slow network counts against none of them.
"""

from __future__ import annotations

from archiver.catalog.engines import AWS_PACKAGE, SPARK_PACKAGES
from tests.support import deploy_parts, etcd_part, kafka_server, real_registry, rest_catalog, s3_server, trino_server
from tests.support.event_judge import AVRO_OF, judge
from tests.support.maven import jars


def main() -> None:
    """All of them, one after the other."""
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
    etcd_part.fetch_or_tell()
    deploy_parts.fetch_or_tell()


if __name__ == "__main__":
    main()
