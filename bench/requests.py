"""Measures how many object store requests each step makes, by kind, and how many bytes it uploads
and downloads.

A proxy in front of s3proxy, a real server, counts them. Counts do not depend on the machine. Those
of LIST depend slightly on the time of day, because a start lists intake by days and tens of hours.
Measured are:

- `first_start`: the command `produce` on an empty bucket, with one record. It creates the
  deployment and stores one intake file;
- `start`: the same command later, without the intake file. Every start reads up to 64 of the newest
  intake files, with a GET each;
- `intake_file`: one intake file of an open writer, the mean of several;
- `round_of_N`: the command `archive` for one table and N archives of one intake file, including its
  start. `commit` is `round_of_1` without that start (counted just before): one archive, read,
  written and committed. `further_archive` is the addition of each further archive;
- `idle_minute`: a daemon with all roles and default settings, and no work;
- `eager_hour`: a commit every 5 s for an hour, without the waits, by one process. A reconciliation,
  a cleanup and an audit follow the first commit and run again at the end, which is more than a
  daemon's default. Counted are requests for table metadata;
- `bulk_in`, `bulk_archived`: many records of random bytes, sent at once and archived; also per GiB
  of their raw bytes.

    python -m bench.requests [--quick] [--output bench/results/requests.json]
"""

from __future__ import annotations

import argparse
import base64
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from archiver import Writer
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions
from bench.outcome import tell
from tests.support.builders.deployment import Deployment, jsonl
from tests.support.builders.driver import Driver
from tests.support.builders.eager_hour import COMMITS_A_MINUTE, MetadataRequests, commit, in_bucket, upkeep
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import PACKAGE, S3Server, data_group
from tests.support.process.serving import Served
from tests.support.servers.http_faults import Answer, Asked

PARTITIONS = 8
ARCHIVES = (1, 2, 8)
FILES = 10
KINDS = ("PUT", "POST", "GET", "HEAD", "LIST", "DELETE")
RECORD_BYTES = 4096
GIB = 1024**3
SETTLED_BY_IDLE = 2
"""A daemon first starts its rare jobs. So the wait before the measurement is so many times its duration."""


class CountingProxy(S3Faults):
    """A proxy that counts requests and bytes."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(server)
        self._kinds: Counter[str] = Counter()
        self._bytes = Counter({"in": 0, "out": 0})

    def taken(self) -> dict[str, int]:
        """Return and reset the requests of each kind and the bytes of request and response bodies."""
        with self._lock:
            kinds, self._kinds = self._kinds, Counter()
            sizes, self._bytes = self._bytes, Counter({"in": 0, "out": 0})
        self.counts()  # resets its list of requests
        return {
            **{kind: kinds[kind] for kind in KINDS},
            "requests": kinds.total(),
            "bytes_in": sizes["in"],
            "bytes_out": sizes["out"],
        }

    def _serve(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        parts = urlsplit(asked.path)
        is_list = (
            asked.method == "GET"
            and {"list-type", "uploads"} & parse_qs(parts.query, keep_blank_values=True).keys()
        )
        with self._lock:
            self._kinds["LIST" if is_list else asked.method] += 1
            self._bytes["in"] += len(asked.body)
        super()._serve(handler, asked)

    def _pass_on(self, asked: Asked) -> Answer:
        answer = super()._pass_on(asked)
        with self._lock:
            self._bytes["out"] += len(answer.body)
        return answer


def deployed(folder: Path, server: S3Server, endpoint: str) -> Deployment:
    """Create a deployment with one topic and table in a new bucket."""
    data = data_group(folder, server.new_bucket(), endpoint, "bench")
    archive = {"kind": "iceberg", "catalog": "local", "table": "bench.clicks"}
    topics = [{"name": "clicks", "partitions": PARTITIONS, "archive": archive}]
    made = Deployment(folder, overrides={"data": data, "topics": topics})
    document = made.document()
    del document["intake"], document["log"]  # use the defaults
    made.write(document)
    return made


def records(partitions: int) -> str:
    """Return one record for each partition, as JSON lines."""
    return jsonl([{"topic": "clicks", "partition": number, "value": "AAAA"} for number in range(partitions)])


def run(deployment: Deployment, *arguments: str, stdin: str = "") -> None:
    """Run a command in this process, so that it uses the shared Spark session; it must succeed."""
    done = deployment.cli(*arguments, stdin=stdin)
    assert done.code == 0, done.err


@contextmanager
def spark() -> Iterator[None]:
    """Keep a Spark session open that every round uses."""
    sessions = SparkSessions(SparkSettings(master="local[2]", driver_memory="1g"), os.environ)
    sessions.session()
    try:
        yield
    finally:
        sessions.close()


def differing(more: dict[str, int], less: dict[str, int]) -> dict[str, int]:
    """Return the difference of two counts."""
    return {name: more[name] - less[name] for name in more}


def without_file(of_produce: dict[str, int], of_file: dict[str, float]) -> dict[str, int]:
    """Return the requests of a command's start: those of `produce` without those of its intake
    file.
    """
    return {name: count - round(of_file[name]) for name, count in of_produce.items()}


def small_steps(root: Path, server: S3Server, proxy: CountingProxy, idle_s: float) -> dict[str, Any]:
    """Measure all steps except the bulk."""
    deployment = deployed(root / "small", server, proxy.uri)
    found: dict[str, Any] = {}

    def counted(work: Callable[[], None]) -> dict[str, int]:
        proxy.taken()
        work()
        return proxy.taken()

    found["first_start"] = counted(lambda: run(deployment, "produce", stdin=records(1)))
    again = counted(lambda: run(deployment, "produce", stdin=records(1)))
    with Writer(deployment.config) as writer:
        writer.send("clicks", value=b"warm up").result(60)
        files = counted(lambda: [writer.send("clicks", value=b"x").result(60) for _ in range(FILES)] and None)
    found["intake_file"] = {name: count / FILES for name, count in files.items()}
    found["start"] = without_file(again, found["intake_file"])
    run(deployment, "archive", "--all")
    run(
        deployment, "produce", stdin=records(PARTITIONS)
    )  # later counts exclude each partition's first archive
    run(deployment, "archive", "--all")
    rounds: dict[int, dict[str, int]] = {}
    starts: dict[int, dict[str, int]] = {}
    for archives in ARCHIVES:
        given = records(archives)
        starts[archives] = without_file(
            counted(lambda given=given: run(deployment, "produce", stdin=given)), found["intake_file"]
        )  # type: ignore[misc]
        rounds[archives] = counted(lambda: run(deployment, "archive", "--all"))
        found[f"round_of_{archives}"] = rounds[archives]
    found["commit"] = differing(rounds[1], starts[1])
    eight = differing(rounds[ARCHIVES[-1]], starts[ARCHIVES[-1]])
    found["further_archive"] = {
        name: round((eight[name] - found["commit"][name]) / (ARCHIVES[-1] - 1), 3) for name in eight
    }
    with Served(deployment, scratch=root / "scratch") as daemon:
        daemon.until_ready()
        time.sleep(SETTLED_BY_IDLE * idle_s)
        spent = counted(lambda: time.sleep(idle_s))
        assert daemon.stop() == 0
    found["idle_minute"] = {name: round(count * 60 / idle_s, 1) for name, count in spent.items()}
    found["idle_seconds"] = idle_s
    return found


def eager_hour(root: Path, server: S3Server, commits: int) -> dict[str, Any]:
    """Return the requests for table metadata of an eager hour: total, commits alone and upkeep
    alone.
    """
    with MetadataRequests(server) as proxy, Driver(in_bucket(root / "eager", server, proxy.uri)) as driver:
        commit(driver, 1)
        proxy.taken()
        upkeep(driver)
        first = proxy.taken()
        commit(driver, commits)
        by_commits = proxy.taken()
        upkeep(driver)
        last = proxy.taken()
    total = first + by_commits + last
    return {
        "commits": commits,
        "per_commit": {
            method: round(total[method] / commits, 2) for method in ("HEAD", "GET", "PUT", "POST")
        },
        "commits_only": dict(by_commits),
        "upkeep_at_the_end": dict(last),
    }


def bulk(root: Path, server: S3Server, proxy: CountingProxy, count: int) -> dict[str, Any]:
    """Measure sending and archiving many records."""
    deployment = deployed(root / "bulk", server, proxy.uri)
    run(deployment, "produce", stdin=records(1))
    rng = random.Random(count)
    lines = jsonl(
        [
            {
                "topic": "clicks",
                "partition": number % PARTITIONS,
                "value": base64.b64encode(rng.randbytes(RECORD_BYTES)).decode(),
            }
            for number in range(count)
        ]
    )
    raw = count * RECORD_BYTES
    found: dict[str, Any] = {"raw_bytes": raw}
    for name, command, stdin in (
        ("bulk_in", ("produce",), lines),
        ("bulk_archived", ("archive", "--all"), ""),
    ):
        proxy.taken()
        run(deployment, *command, stdin=stdin)
        taken = proxy.taken()
        found[name] = {
            **taken,
            "per_gib": {one: round(taken[one] * GIB / raw, 1) for one in (*KINDS, "requests")},
        }
        found[name] |= {
            "in_by_raw": round(taken["bytes_in"] / raw, 3),
            "out_by_raw": round(taken["bytes_out"] / raw, 3),
        }
    return found


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few records and a short idle time")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-requests-") as folder:
        root = Path(folder)
        with S3Server(root / "s3") as server, CountingProxy(server) as proxy, spark():
            steps = small_steps(root, server, proxy, 3.0 if options.quick else 60.0)
            eager = eager_hour(root, server, COMMITS_A_MINUTE * (1 if options.quick else 60))
            many = bulk(root, server, proxy, 2_000 if options.quick else 16_000)
    document = {
        "what": "requests to a bucket for each step, and the bytes of their bodies and answers",
        "partitions": PARTITIONS,
        "steps": steps,
        "eager_hour": eager,
        "bulk": many,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "s3proxy": PACKAGE.split(":")[2],
            **{name: version(name) for name in ("boto3", "pyarrow", "pyiceberg")},
        },
    }
    tell(document, options.output)


if __name__ == "__main__":
    main()
