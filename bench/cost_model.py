"""Computes monthly costs of a steady stream from measured bytes, requests and CPU time and a price
list.

The functions are pure. The command prints the tables of the documentation page.

    python -m bench.cost_model
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archiver.config.groups import CleanupSettings, IntakeSettings, SparkSettings
from archiver.config.topics import ArchiveSettings
from bench.cost_requests import GIB, Asked, Deployment, asked

RESULTS = Path(__file__).with_name("results")
MONTH_S = 30 * 86_400
PARTITIONS = 288
RETENTION_S = 7 * 86_400
BUSY = 0.5
"""Utilization of the processors that are paid for."""
LEADER_CORES = 4
DISK_FULL = 0.5
"""Used share of a broker's disk, as in the published calculation."""
VOLUME_GIB = 16 * 1024
"""Size of a broker's disk, as in the published calculation."""


@dataclass(frozen=True)
class Prices:
    """Prices in dollars. GB are GiB, as the provider charges them."""

    storage: tuple[tuple[float, float], ...]
    """Tiers: upper limit in GiB, and price per GiB and month."""
    writes: float
    """Per thousand requests."""
    reads: float
    core: float
    """Per month."""
    metadata_store: float
    """Three members, per month."""
    between_zones: float
    """Per GiB, sum of both directions."""
    disk: float
    """Per GiB and month."""
    broker: float
    """Per month, without its disk."""


PUBLISHED = Prices(
    storage=((50 * 1024, 0.023), (500 * 1024, 0.022), (math.inf, 0.021)),
    writes=0.005,
    reads=0.0004,
    core=890 / 24,
    metadata_store=222,
    between_zones=0.02,
    disk=42_025 / (57 * VOLUME_GIB),
    broker=8_039 / 57,
)
"""docs/performance.md names the sources (scripts/performance/cost.py)."""
BUFSTREAM, KAFKA = 11_147, 84_796
"""The published dollars a month: 1 GiB/s in and out, seven days of retention, compressed to a quarter."""


@dataclass(frozen=True)
class Use:
    """Resources that a steady stream uses."""

    stored_gib: float
    writes_per_s: float
    reads_per_s: float
    cores: float
    between_zones_gib_per_s: float


def month(use: Use, prices: Prices) -> dict[str, float]:
    """Return the dollars a month by cost item."""
    return {
        "processors": use.cores * prices.core,
        "metadata store": prices.metadata_store,
        "between zones": use.between_zones_gib_per_s * MONTH_S * prices.between_zones,
        "requests that write": use.writes_per_s * MONTH_S / 1000 * prices.writes,
        "requests that read": use.reads_per_s * MONTH_S / 1000 * prices.reads,
        "bytes kept": storage(use.stored_gib, prices),
    }


def storage(gib: float, prices: Prices) -> float:
    """Return the dollars a month of stored bytes; the first tiers cost more per GiB."""
    total = below = 0.0
    for up_to, price in prices.storage:
        total += max(0.0, min(gib, up_to) - below) * price
        below = up_to
    return total


def kafka_month(by_raw: float, gib_per_s: float, prices: Prices) -> float:
    """Return the dollars a month of Kafka with three replicas in three zones, by the published
    calculation.

    Producers reach a leader in another zone two times of three; consumers read in their own zone.
    Half of a broker's disk stays free.
    """
    crossing = (2 / 3 + 2) * gib_per_s * by_raw * MONTH_S * prices.between_zones
    volumes = math.ceil(3 * gib_per_s * by_raw * RETENTION_S / DISK_FULL / VOLUME_GIB)
    return crossing + volumes * (VOLUME_GIB * prices.disk + prices.broker)


def intake_age_s(cleanup: CleanupSettings) -> float:
    """Return the mean seconds that an intake file is kept if cleaning keeps up.

    The first run after `cleanup.grace` marks it for deletion. The first run after a second
    `cleanup.grace` deletes it.
    """
    return cleanup.grace + cleanup.interval / 2 + (cleanup.grace // cleanup.interval + 1) * cleanup.interval


def use_of(
    deployment: Deployment, cleanup: CleanupSettings, message: Mapping[str, Any], results: Mapping[str, Any]
) -> tuple[Use, Asked]:
    """Return the resources and requests of 1 GiB/s of a message of cost.json."""
    found = asked(deployment, GIB, message, results["requests"]["steps"])
    kept_s = {"archive": RETENTION_S, "intake": intake_age_s(cleanup)}
    segment = results["capacity"]["intake"]["1000x10"]["entry_bytes_per_segment"]
    entries = found.files * deployment.partitions * segment / GIB
    # Copies to the store's leader, its two followers, and every process that folds the log.
    copies = 2 / 3 + 2 + (deployment.writers + 1) * 2 / 3
    use = Use(
        stored_gib=sum(message["by_raw"][what] * seconds for what, seconds in kept_s.items()),
        writes_per_s=found.writes,
        reads_per_s=found.reads,
        cores=deployment.writers + deployment.cores + LEADER_CORES,
        between_zones_gib_per_s=entries * copies,
    )
    return use, found


def results() -> dict[str, Any]:
    """Load the result files that the model needs."""
    return {
        name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("cost", "requests", "capacity", "writer")
    }


def as_by_default(
    message: Mapping[str, Any], found: Mapping[str, Any], partitions: int = PARTITIONS, **groups: Any
) -> Deployment:
    """Return the deployment for 1 GiB/s: as many processes as needed and a large enough round.
    `groups` override default settings.
    """
    writer_bytes = found["writer"]["writer_mb_per_core_second"]["median"] * 1e6
    cores = math.ceil(message["archive_cpu_s_per_gib"]["median"] / BUSY)
    return Deployment(
        partitions,
        math.ceil(GIB / writer_bytes / BUSY),
        cores,
        **{"archive": ArchiveSettings(round_bytes_max=16 * GIB), **groups},
    )


FEWER_REQUESTS: Mapping[str, Any] = {
    "intake": IntakeSettings(delay_max=1.0, delay_max_bytes=60_000_000, queue_bytes_max=256_000_000),
    "archive": ArchiveSettings(max_bytes=64 * 2**20, tick=30.0, round_bytes_max=64 * GIB),
    "spark": SparkSettings(task_bytes=2 * GIB),
    "part_bytes": 64 * 2**20,
}
CLEANING = CleanupSettings(interval=3600.0)


def _rows(head: str, names: list[str], rows: Mapping[str, list[str]]) -> list[str]:
    lines = [[head, *names], ["---"] * (1 + len(names)), *([what, *cells] for what, cells in rows.items())]
    return [
        f"| {' | '.join(cells)} |".replace("| --- ", "|---").replace("|--- |", "|---|") for cells in lines
    ]


def bytes_table(found: Mapping[str, Any]) -> list[str]:
    """Return the table of stored bytes per received byte."""
    messages = found["cost"]["messages"]
    ratios = {
        "intake files": "intake",
        "archives": "archive",
        "segments of Kafka with zstd, batches of 16 KiB": "kafka_16KiB",
        "segments of Kafka with zstd, batches of 1 MiB": "kafka_1MiB",
    }
    rows = {
        what: [f"{message['by_raw'][key]:.3f}" for message in messages.values()]
        for what, key in ratios.items()
    }
    rows["archives relative to segments, batches of 16 KiB"] = [
        f"{message['archive_by_kafka']['16KiB']:.2f}" for message in messages.values()
    ]
    rows["archives relative to segments, batches of 1 MiB"] = [
        f"{message['archive_by_kafka']['1MiB']:.2f}" for message in messages.values()
    ]
    return _rows(
        "bytes stored per byte received", [_named(name, message) for name, message in messages.items()], rows
    )


def _named(name: str, message: Mapping[str, Any]) -> str:
    return f"{name}, {message['raw_bytes_per_record']:,.0f} B"


def requests_table(found: Mapping[str, Any], name: str = "nested") -> list[str]:
    """Return the table of requests per GiB of one message, by deployment."""
    message = found["cost"]["messages"][name]
    columns = {
        "defaults, 8 partitions": as_by_default(message, found, 8),
        f"defaults, {PARTITIONS} partitions": as_by_default(message, found),
        f"fewer requests, {PARTITIONS} partitions": as_by_default(message, found, **FEWER_REQUESTS),
    }
    rows: dict[str, list[str]] = {}
    for deployment in columns.values():
        use, asked_for = use_of(deployment, CLEANING, message, found)
        paid = month(use, PUBLISHED)
        cells = {
            "intake files": f"{asked_for.files:,.0f}",
            "requests that store the intake files": f"{asked_for.writes_in:,.0f}",
            "tasks that open each intake file": f"{asked_for.rounds.opened:,.0f}",
            "requests of these tasks to read them": f"{asked_for.reads_archiving:,.0f}",
            "archives": f"{asked_for.rounds.archives_per_gib:,.0f}",
            "requests that store the archives": f"{asked_for.writes_archiving:,.0f}",
            "all other requests": f"{asked_for.other_writes + asked_for.other_reads:,.0f}",
            "dollars a month, at 1 GiB/s": f"{paid['requests that write'] + paid['requests that read']:,.0f}",
        }
        for what, cell in cells.items():
            rows.setdefault(what, []).append(cell)
    return _rows(f"for a GiB of {name} records", list(columns), rows)


@dataclass(frozen=True)
class Month:
    """Monthly cost of a message at 1 GiB/s."""

    cores: float
    paid: Mapping[str, float]
    """Dollars by cost item."""
    kafka: float

    @property
    def together(self) -> float:
        """Sum of all cost items in dollars."""
        return sum(self.paid.values())


def months(found: Mapping[str, Any]) -> dict[str, Month]:
    """Return the monthly cost of each message, with the settings for fewer requests."""
    reckoned = {}
    for name, message in found["cost"]["messages"].items():
        use, _ = use_of(as_by_default(message, found, **FEWER_REQUESTS), CLEANING, message, found)
        reckoned[name] = Month(
            use.cores, month(use, PUBLISHED), kafka_month(message["by_raw"]["kafka_1MiB"], 1, PUBLISHED)
        )
    return reckoned


def month_table(found: Mapping[str, Any], reckoned: Mapping[str, Month]) -> list[str]:
    """Return the table of dollars a month at 1 GiB/s."""
    rows: dict[str, list[str]] = {}
    for one in reckoned.values():
        cells = {"number of processors": f"{one.cores:,.0f}"} | {
            what: f"{dollars:,.0f}" for what, dollars in one.paid.items()
        }
        cells |= {
            "total": f"{one.together:,.0f}",
            "Kafka, three replicas, the same records": f"{one.kafka:,.0f}",
            "Kafka relative to the archiver": f"{one.kafka / one.together:.1f}",
        }
        for what, cell in cells.items():
            rows.setdefault(what, []).append(cell)
    return _rows(
        "dollars a month", [_named(name, found["cost"]["messages"][name]) for name in reckoned], rows
    )


def main() -> None:
    """Print the tables of docs/performance.md."""
    found = results()
    for table in (bytes_table(found), requests_table(found), month_table(found, months(found))):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
