"""Many commits to a table in a bucket, and what else a daemon does between them: for tests and benches that
count requests."""

from __future__ import annotations

from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import S3Server, data_group
from tests.support.servers.http_faults import Asked

COMMITS_A_MINUTE = 12
"""One every 5 s, with the eager settings of docs/operations/freshness.md."""


class MetadataRequests(S3Faults):
    """Counts the requests for table metadata that pass, by method."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self._methods: Counter[str] = Counter()

    def taken(self) -> Counter[str]:
        """Since the call before."""
        with self._lock:
            found, self._methods = self._methods, Counter()
        self.counts()  # which keeps a list
        return found

    def _serve(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        parts = urlsplit(asked.path)
        if "/metadata/" in parts.path and "list-type" not in parse_qs(parts.query, keep_blank_values=True):
            with self._lock:
                self._methods[asked.method] += 1
        super()._serve(handler, asked)


def in_bucket(folder: Path, server: S3Server, endpoint: str) -> Deployment:
    """One topic with a table, in a new bucket."""
    archive = {"kind": "iceberg", "catalog": "local", "table": "shop.clicks"}
    topics = [{"name": "clicks", "partitions": 2, "archive": archive}]
    return Deployment(
        folder, overrides={"data": data_group(folder, server.new_bucket(), endpoint), "topics": topics}
    )


def commit(driver: Driver, times: int) -> None:
    """So many rounds with a commit each."""
    for number in range(times):
        driver.send("clicks", [b"%d" % number], number % 2)
        assert driver.archive().topics["clicks"].state == "archived"


def upkeep(driver: Driver) -> None:
    """A reconciliation, a cleanup and an audit."""
    assert (
        driver.application.maintenance.reconciling(driver.reported.append, dry_run=False)
        .run("nothing")
        .findings
        == []
    )
    assert (
        driver.application.maintenance.cleaning(driver.reported.append, dry_run=False)
        .run(dry_run=False)
        .findings
        == []
    )
    assert driver.audit()["verdict"] == "valid"
