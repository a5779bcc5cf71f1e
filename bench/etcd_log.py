"""Measures append and read rates and the size of the log in etcd, compared with a bare client and
the log in SQLite.

Entries are those of `bench.log`: what a flush of 20 segments over 400 partitions appends. etcd runs
as one member and as a cluster of three, on loopback and one disk. The contenders run in alternating
blocks:

- `log`: `append` of the log, index by index;
- `bare`: the same two puts (entry and tail) in one transaction without comparisons, by a plain gRPC
  client on one connection;
- `sqlite`: `append` of the log in SQLite, on the same disk.

A ratio is the time of a contender by that of the log in etcd, in the same repetition. Then both
logs are read to their ends. In addition, a second connection polls for the next entry while the
first appends. `seen` is the time from the start of an append until the other connection has read
the entry. `poll` is the time of one poll that finds nothing. Readers poll; they use no watch.

Byte counts are etcd's own figures of its file size. They are taken before and after the appends,
and after compaction and defragmentation. The sizes of intake and ledger entries are counted in a
deployment with real archiving rounds.

    python -m bench.etcd_log [--quick] [--appends 1000] [--repetitions 5] [--output
    bench/results/etcd_log.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from archiver.config.groups import LogSettings
from archiver.log.etcd.cluster import import_etcd3
from archiver.log.etcd.keys import Keys, number_text
from archiver.log.etcd.log_store import put
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended, Log
from archiver.proto import etcd_rpc_pb2 as rpc
from bench.log import BLOCK, BUSY_TIMEOUT_S, make_entries
from bench.outcome import tell
from bench.requests import run, spark
from bench.writer import spread
from tests.support.builders.deployment import Deployment, jsonl
from tests.support.log.etcd_part import CONTROL, required
from tests.support.log.etcd_server import Etcd, EtcdThree
from tests.support.log.etcd_stores import etcd_store

SEEN_PATIENCE_S = 30.0
ROUND_PARTITIONS = 3
WRITTEN_EVERY_S = 0.5
WRITTEN_LOOKS = 20


def timed_blocks(contenders: dict[str, Callable[[int], None]], count: int) -> dict[str, list[float]]:
    """Return the seconds of each call of each contender, in alternating blocks."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for block, first in enumerate(range(0, count, BLOCK)):
        turn = block % len(names)
        for name in (*names[turn:], *names[:turn]):
            for number in range(first, min(first + BLOCK, count)):
                start = time.perf_counter()
                contenders[name](number)
                seconds[name].append(time.perf_counter() - start)
    return seconds


def percentile(values: Sequence[float], share: int) -> float:
    """Return the percentile `share` (1 to 99)."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def appending(log: Log, entries: list[bytes]) -> Callable[[int], None]:
    """Return a function that appends one entry; the append must succeed."""

    def append(number: int) -> None:
        assert log.append(number, entries[number]) is Appended.OK

    return append


def bare(address: str, entries: list[bytes]) -> tuple[Callable[[int], None], grpc.Channel]:
    """Return a function that does the same puts without comparisons, and its channel."""
    channel, keys = grpc.insecure_channel(address), Keys("/bare")
    stub = import_etcd3().etcdrpc.KVStub(channel)

    def write(number: int) -> None:
        puts = [
            put(keys.entry("intake", number), entries[number]),
            put(keys.tail("intake"), number_text(number + 1)),
        ]
        assert stub.Txn(rpc.TxnRequest(success=puts), timeout=30).succeeded

    return write, channel


def read_whole(log: Log, entries: list[bytes]) -> float:
    """Read the whole log and return entries per second."""
    start, found = time.perf_counter(), list[bytes]()
    while len(found) < len(entries):
        found += [entry.data for entry in log.read(len(found))]
    took = time.perf_counter() - start
    assert found == entries
    return len(entries) / took


def time_seen(log: Log, other: Log, first: int, entries: list[bytes]) -> tuple[list[float], list[float]]:
    """Return the seconds until another connection has read each entry, and those of its polls that
    found nothing.
    """
    seen_at: list[float] = []
    polls: list[float] = []

    def look() -> None:
        deadline = time.perf_counter() + SEEN_PATIENCE_S
        while len(seen_at) < len(entries) and time.perf_counter() < deadline:
            start = time.perf_counter()
            found = other.read(first + len(seen_at))
            now = time.perf_counter()
            if not found:
                polls.append(now - start)
            seen_at.extend([now] * len(found))

    reader = threading.Thread(target=look)
    reader.start()
    began: list[float] = []
    for number, data in enumerate(entries):
        time.sleep(0.005)  # like a writer that uploads first
        began.append(time.perf_counter())
        assert log.append(first + number, data) is Appended.OK
    reader.join()
    assert len(seen_at) == len(entries)
    return [at - start for at, start in zip(seen_at, began, strict=True)], polls


def repetition(addresses: list[str], folder: Path, count: int, number: int) -> dict[str, Any]:
    """Run all timed measurements once."""
    entries = make_entries(count)
    store = etcd_store(addresses, folder / "ours", f"/bench-{number}")
    second = etcd_store(addresses, folder / "other", f"/bench-{number}")
    sqlite = SqliteLogStore(folder / "metadata.db", BUSY_TIMEOUT_S, LogSettings().entry_bytes_max)
    ours, local = store.log("intake"), sqlite.log("intake")
    plain, channel = bare(addresses[0], entries)
    found: dict[str, Any] = {
        "seconds": timed_blocks(
            {"log": appending(ours, entries), "bare": plain, "sqlite": appending(local, entries)}, count
        )
    }
    found["read"] = {"log": read_whole(ours, entries), "sqlite": read_whole(local, entries)}
    found["seen"], found["polls"] = time_seen(
        ours, second.log("intake"), count, entries[: max(20, count // 10)]
    )
    for one in (store, second, sqlite):
        one.close()
    channel.close()
    return found


def measure(addresses: list[str], root: Path, count: int, repetitions: int) -> dict[str, Any]:
    """Run all timed measurements on one kind of etcd and return the figures."""
    runs = []
    for number in range(repetitions + 1):
        folder = root / f"run-{number}"
        folder.mkdir(parents=True)
        runs.append(repetition(addresses, folder, count, number))
    del runs[0]  # the first run warms up
    found: dict[str, Any] = {"appends": count, "repetitions": repetitions}
    for name in ("log", "bare", "sqlite"):
        seconds = [run["seconds"][name] for run in runs]
        found[name] = {
            "appends_per_second": spread([count / sum(one) for one in seconds]),
            "p50_ms": spread([1e3 * percentile(one, 50) for one in seconds]),
            "p99_ms": spread([1e3 * percentile(one, 99) for one in seconds]),
        }
        if name != "log":
            found[name]["ratio"] = spread(
                [sum(run["seconds"][name]) / sum(run["seconds"]["log"]) for run in runs]
            )
    for name in ("log", "sqlite"):
        found[name]["read_entries_per_second"] = spread([run["read"][name] for run in runs])
    found["seen_p50_ms"] = spread([1e3 * percentile(run["seen"], 50) for run in runs])
    found["seen_p99_ms"] = spread([1e3 * percentile(run["seen"], 99) for run in runs])
    found["poll_p50_ms"] = spread([1e3 * percentile(run["polls"], 50) for run in runs])
    return found


def sizes(etcd: Etcd, folder: Path, count: int) -> dict[str, Any]:
    """Return the growth of etcd's file per append, and what remains of it after compaction."""
    entries = make_entries(count)
    store = etcd_store([etcd.address], folder / "sizes", "/sizes")
    log = store.log("intake")
    steps: list[int] = []
    before = tidy(etcd)
    for half in (entries[: count // 2], entries[count // 2 :]):
        first = log.tail()
        for number, data in enumerate(half):
            assert log.append(first + number, data) is Appended.OK
        grown = written_bytes(etcd) - before
        after = tidy(etcd)
        steps += [grown, after - before]
        before = after
    store.close()
    return {
        "entries": count,
        "entry_bytes": round(statistics.mean(map(len, entries))),
        "bytes_per_append": {
            "first_half": round(steps[0] * 2 / count),
            "second_half": round(steps[2] * 2 / count),
        },
        "bytes_kept_per_entry": {
            "first_half": round(steps[1] * 2 / count),
            "second_half": round(steps[3] * 2 / count),
        },
    }


def tidy(etcd: Etcd) -> int:
    """Compact the history, defragment, and return the file size in bytes."""
    for asked in (["compact", str(etcd.status().header.revision), "--physical"], ["defrag"]):
        command = [str(required(CONTROL)), "--endpoints", etcd.address, *asked]
        subprocess.run(
            command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, timeout=60, check=True
        )
    return file_bytes(etcd)


def written_bytes(etcd: Etcd) -> int:
    """Return the file size once it is stable. etcd writes to its file every 100 ms, so the last
    appends are missing at first.
    """
    found = file_bytes(etcd)
    for _ in range(WRITTEN_LOOKS):
        time.sleep(WRITTEN_EVERY_S)
        before, found = found, file_bytes(etcd)
        if found == before:
            return found
    raise TimeoutError(f"etcd's file grew for {WRITTEN_LOOKS * WRITTEN_EVERY_S:g} s after the last append")


def file_bytes(etcd: Etcd) -> int:
    """Return the bytes of the pages in use."""
    with urllib.request.urlopen(f"http://{etcd.address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("etcd_mvcc_db_total_size_in_use_in_bytes "))
    return int(float(line.split()[1]))


def of_a_deployment(etcd: Etcd, folder: Path, rounds: int) -> dict[str, Any]:
    """Return number and size of the entries that real archiving rounds append."""
    metadata = {"etcd": {"addresses": [etcd.address], "state": "state", "prefix": "/deployment"}}
    deployment = Deployment(folder, overrides={"metadata": metadata})
    with spark():
        return _of_rounds(etcd, deployment, rounds)


def _of_rounds(etcd: Etcd, deployment: Deployment, rounds: int) -> dict[str, Any]:
    kept: list[dict[str, list[int]]] = []
    for number in range(rounds):
        lines = jsonl(
            [
                {"topic": "orders", "partition": one, "value": None, "key": "AAAA"}
                for one in range(ROUND_PARTITIONS)
            ]
        )
        for arguments, stdin in ((("produce",), lines), (("archive", "--all"), "")):
            run(deployment, *arguments, stdin=stdin)
        with etcd.client() as client:
            values = {
                name: [len(value) for value, _ in client.get_prefix(f"/deployment/{name}/e/")]
                for name in ("intake", "control")
            }
        kept.append(values)
        assert number == 0 or len(values["control"]) > len(kept[-2]["control"])
    last = {name: values[len(kept[-2][name]) :] for name, values in kept[-1].items()}
    return {
        "archives_per_round": ROUND_PARTITIONS,
        **{
            f"{name}_entries_per_round": {
                "count": len(found),
                "bytes": sum(found),
                "largest": max(found, default=0),
            }
            for name, found in last.items()
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few appends: a smoke test, the times mean little"
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--appends", type=int, default=1000, help="per contender and repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    count, repetitions = (100, 1) if options.quick else (options.appends, options.repetitions)
    with tempfile.TemporaryDirectory(prefix="bench-etcd-") as folder:
        root = Path(folder)
        with Etcd(root / "one") as etcd:
            alone = measure([etcd.address], root / "alone", count, repetitions)
            taken = sizes(etcd, root, 10 * count)
            entries = of_a_deployment(etcd, root / "deployment", 2 if options.quick else 4)
            release = etcd.status().version
        with EtcdThree(root / "three") as members:
            three = measure(members.addresses, root / "cluster", count, repetitions)
    document = {
        "what": "the log in etcd beside the same puts by a bare client and beside the log "
        "in SQLite, and what "
        "it takes",
        "one_member": alone,
        "three_members": three,
        "bytes": taken,
        "deployment": entries,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "etcd": release, "grpcio": version("grpcio")},
    }
    tell(document, options.output)


if __name__ == "__main__":
    main()
