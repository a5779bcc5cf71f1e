"""A real daemon whose real catalog is killed, stays away while records come, and is started again: what was
archived during that time comes into the table in order, without an operator.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment, text
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.process.processes import PATIENCE_S, until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    # Three JVMs start, one after another: half a minute alone, two on a machine that has much else to do,
    # most of it the start of Spark.
    pytest.mark.timeout(360),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

TABLE = "shop.clicks"
PARTITIONS = 2
FILES_MAX = 6
TICKS_MORE = 3
SENDS_MAX = 20
ASKS_EVERY_S = 0.2
SPARK_STARTS_WITHIN_S = 200.0


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    with RestCatalog(tmp_path / "catalog") as made:
        made.warm_up()
        yield made


@pytest.fixture
def deployment(catalog: RestCatalog, tmp_path: Path) -> Deployment:
    topic = {
        "name": "clicks",
        "partitions": PARTITIONS,
        "archive": {"kind": "iceberg", "catalog": "local", "table": TABLE},
    }
    known = {"name": "local", "type": "rest", "uri": catalog.uri, "request_timeout": "30s"}
    made = Deployment(
        tmp_path / "d",
        overrides={"catalogs": [known], "topics": [topic], "archive": {"pending_files_max": FILES_MAX}},
    )
    made.write(quick(made.document()))
    return made


class Clicks:
    """What was sent to the daemon, record by record, and where it was acknowledged."""

    def __init__(self, daemon: Served, deployment: Deployment) -> None:
        self._daemon = daemon
        self._deployment = deployment
        self.sent: dict[tuple[int, int], bytes] = {}
        """Per (partition, offset) the value."""

    def send(self) -> None:
        """One record into each partition; each is acknowledged, in any state of the catalog."""
        for partition in range(PARTITIONS):
            value = f"click {len(self.sent)}".encode()
            body = f'{{"partition": {partition}, "value": "{text(value)}"}}\n'.encode()
            answer = self._daemon.post("/v1/topics/clicks/records", body)
            assert answer.status == 200, answer
            (reported,) = answer.lines()
            assert reported["partition"] == partition
            self.sent[partition, reported["offset"]] = value

    def check_readable(self) -> None:
        """A reader of the stream, in a process of its own as far as files go, has every record in the order
        of its partition."""
        found: dict[int, list[tuple[int, str | None]]] = {partition: [] for partition in range(PARTITIONS)}
        for record in self._deployment.consume("clicks"):
            found[record["partition"]].append((record["offset"], record["value"]))
        for partition, records in found.items():
            assert records == [
                (offset, text(value)) for (of, offset), value in sorted(self.sent.items()) if of == partition
            ]

    def check_table(self, catalog: RestCatalog) -> None:
        """The table has every record, byte for byte, and once; in each of its snapshots every partition was
        whole as far as it went."""
        client = catalog.client()
        table = client.load_table(TABLE)
        for snapshot in table.snapshots():
            rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
            places = sorted((row["kafka"]["partition"], row["kafka"]["offset"]) for row in rows)
            ends = {partition: sum(of == partition for of, _ in places) for partition in range(PARTITIONS)}
            assert places == [(partition, offset) for partition, end in ends.items() for offset in range(end)]
        client.close()
        assert {
            (row["kafka"]["partition"], row["kafka"]["offset"]): row["value"]["__raw__"] for row in rows
        } == self.sent


def until_reported(
    daemon: Served, what: str, holds: Callable[[], object], patience_s: float = PATIENCE_S
) -> None:
    """As `until`, for what the daemon itself is asked: not so often that it has nothing else to do. A failure
    shows its log."""

    def asked() -> object:
        found = holds()
        if not found:
            SystemClock().sleep(ASKS_EVERY_S)
        return found

    try:
        until(what, asked, patience_s)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{daemon.log_text()}") from None


def pending(daemon: Served) -> int:
    """Archives that are in no table, as `/metrics` says."""
    wanted = 'archiver_pending_archives{topic="clicks"} '
    found = [line for line in daemon.get("/metrics").body.decode().splitlines() if line.startswith(wanted)]
    return round(float(found[0].removeprefix(wanted))) if found else 0


def catalog_answers(daemon: Served) -> bool:
    """What /readyz says of the catalog."""
    (found,) = [one["ok"] for one in daemon.get("/readyz").json()["checks"] if one["name"] == "catalog local"]
    return bool(found)


def until_more_ticks(daemon: Served) -> None:
    """Wait until some further ticks have ended."""

    def ended() -> int:
        return sum(daemon.cycles("tick", outcome) for outcome in ("fine", "wrong", "untold"))

    before = ended()
    until_reported(daemon, "further ticks have ended", lambda: ended() >= before + TICKS_MORE)


def archive_until(daemon: Served, clicks: Clicks, files: int) -> None:
    """Send, a record into each partition at a time, until so many archives wait for the table; what is shown
    may be older than that."""
    for _ in range(SENDS_MAX):
        if pending(daemon) >= files:
            return
        clicks.send()
        until_more_ticks(daemon)
    raise AssertionError(f"{pending(daemon)} archives wait, {files} should\n{daemon.log_text()}")


def test_what_is_archived_while_the_catalog_is_away_comes_into_the_table(
    catalog: RestCatalog, deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(deployment, scratch=tmp_path / "scratch") as daemon:
        clicks = Clicks(daemon, deployment)
        daemon.until_ready()
        clicks.send()
        until_reported(
            daemon, "Spark has started", lambda: daemon.logged("archived in"), SPARK_STARTS_WITHIN_S
        )
        daemon.until_archived("clicks", len(clicks.sent))

        clicks.send()  # it may be anywhere on its way into the table
        catalog.go_away()
        archive_until(daemon, clicks, FILES_MAX)
        until_reported(daemon, "the daemon knows what is missing", lambda: not catalog_answers(daemon))
        clicks.check_readable()
        assert daemon.admin("audit")["done"]["document"]["verdict"] == "unknown"

        for _ in range(2):
            clicks.send()
            until_more_ticks(daemon)
        assert pending(daemon) == FILES_MAX, "no more are written than may wait"
        assert len(clicks.sent) > PARTITIONS + FILES_MAX
        clicks.check_readable()

        catalog.come_back()
        until_reported(daemon, "the catalog answers", lambda: catalog_answers(daemon))
        daemon.until_archived("clicks", len(clicks.sent))
        until_reported(daemon, "nothing waits any more", lambda: pending(daemon) == 0)
        clicks.check_readable()
        clicks.check_table(catalog)
        assert {line["level"] for line in daemon.logged("tick:")} <= {"info", "warning"}, daemon.log_text()
        assert daemon.stop() == 0
    gc.collect()
    assert not [record for record in caplog.records if record.name.startswith("py4j")], (
        "the catalog that was killed leaves nothing to say"
    )
