"""Does the cost of a month follow from bytes, requests and prices, and do requests follow from settings?
Expected values are computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from archiver.config.groups import CleanupSettings, IntakeSettings, SparkSettings
from archiver.config.topics import ArchiveSettings
from bench.cost_model import (
    BUFSTREAM,
    KAFKA,
    PUBLISHED,
    Prices,
    Use,
    intake_age_s,
    kafka_month,
    month,
    storage,
)
from bench.cost_requests import GIB, Deployment, asked, files_per_gib, rounds, stores

MIB = 2**20
PRICES = Prices(
    storage=((100, 0.5), (math.inf, 0.25)),
    writes=2.0,
    reads=1.0,
    core=30,
    metadata_store=200,
    between_zones=0.1,
    disk=0.01,
    broker=7,
)


def test_a_month() -> None:
    paid = month(
        Use(stored_gib=300, writes_per_s=0.5, reads_per_s=2, cores=4, between_zones_gib_per_s=0.001), PRICES
    )
    assert paid == pytest.approx(
        {
            "processors": 4 * 30,
            "metadata store": 200,
            "between zones": 259.2,  # 2,592 GiB
            "requests that write": 2592,  # 1,296,000 of them
            "requests that read": 5184,  # 5,184,000
            "bytes kept": 100 * 0.5 + 200 * 0.25,
        }
    )


def test_what_is_published_comes_out_of_its_own_prices() -> None:
    """Bufstream's page states: 153 TiB cost $3,498; 125 reads and 75 writes a second cost $1,127. Its month
    is a little longer."""
    assert storage(153 * 1024, PUBLISHED) == pytest.approx(3498, abs=1)
    paid = month(Use(0, 75, 125, 24, 0.0045), PUBLISHED)
    assert paid["requests that write"] + paid["requests that read"] == pytest.approx(1127, rel=0.03)
    assert paid["processors"] == pytest.approx(890)
    assert kafka_month(0.25, 1, PUBLISHED) == pytest.approx(KAFKA, rel=0.02)
    assert pytest.approx(7.6, abs=0.01) == KAFKA / BUFSTREAM


def test_an_intake_file_is_kept_for_hours() -> None:
    hour = 3600.0
    assert intake_age_s(CleanupSettings()) == 10 * hour, (
        "on average condemned after 1 + 6 / 2, deleted a run later"
    )
    # The next run comes shortly before the deletion delay ends, and the one after it deletes.
    assert intake_age_s(CleanupSettings(interval=hour)) == 3.5 * hour
    assert intake_age_s(CleanupSettings(interval=hour, grace=60)) == hour / 60 + 1.5 * hour


def test_files_are_full_or_old() -> None:
    intake = IntakeSettings(delay_max=0.5, delay_max_bytes=16 * MIB)
    assert files_per_gib(Deployment(8, 2, 1, intake=intake), GIB) == 64, "two writers fill 32 a second each"
    assert files_per_gib(Deployment(8, 2, 1, intake=intake), GIB // 64) == 2 * 2 * 64, (
        "each has 8 MiB a second: two files"
    )


def test_a_large_object_is_stored_in_parts() -> None:
    assert [stores(size * MIB, 16 * MIB) for size in (1, 16, 17, 64)] == [1, 1, 4, 6]


def archiving(**settings: Any) -> ArchiveSettings:
    return ArchiveSettings(round_bytes_max=64 * GIB, **settings)


def test_large_archives_are_tasks_of_their_own_and_each_opens_every_file() -> None:
    # 2.5 GiB per partition and round: 20 archives of 128 MiB, one after the other.
    found = rounds(Deployment(4, 1, 8, archive=archiving(), spark=SparkSettings(task_bytes=128 * MIB)), GIB)
    assert found.opened == pytest.approx(4, rel=0.01)
    assert found.archives_per_gib == pytest.approx(8, rel=0.01)
    assert found.taken_share == pytest.approx(1, abs=1e-6)


def test_small_archives_share_tasks() -> None:
    # 640 KiB per partition and second: due every other round, 6.4 MiB each.
    shared: dict[str, Any] = {
        "archive": archiving(max_bytes=4 * MIB),
        "spark": SparkSettings(task_bytes=16 * GIB),
    }
    assert rounds(Deployment(16, 1, 1, **shared), 10 * MIB).opened == pytest.approx(1)
    assert rounds(Deployment(16, 1, 4, **shared), 10 * MIB).opened == pytest.approx(4)


def test_rounds_that_are_too_small_leave_a_backlog() -> None:
    found = rounds(Deployment(8, 1, 8), GIB)
    assert found.taken_share == pytest.approx(0.8, rel=0.02), "8 GiB in 10 s, and a plan is taken whole"


def test_requests_of_a_gib() -> None:
    """For 64 MiB/s in files of 16 MiB. A commit with its 29 other requests comes every ten seconds, which is
    1.6 times per GiB."""
    kinds = dict.fromkeys(("PUT", "POST", "LIST", "GET", "HEAD"), 0)
    steps = {
        "commit": kinds | {"PUT": 4, "POST": 6, "LIST": 2, "GET": 9, "HEAD": 9},
        "further_archive": kinds | {"PUT": 1},
        "idle_minute": kinds | {"LIST": 6, "GET": 60},
    }
    reads = {str(16 * MIB): {"gets": {"1": 5.0, "3": 11.0}}, str(60 * MIB): {"gets": {"1": 50.0}}}
    message = {"by_raw": {"intake": 0.5, "archive": 0.25}, "intake_reads": reads}
    deployment = Deployment(
        2,
        1,
        1,
        intake=IntakeSettings(delay_max=1.0, delay_max_bytes=16 * MIB),
        archive=archiving(),
        part_bytes=16 * MIB,
    )
    found = asked(deployment, 64 * MIB, message, steps)
    assert (found.files, found.writes_in) == (64, 64)
    assert found.reads_archiving == pytest.approx(64 * (5 + 3 * (found.rounds.opened - 1))), (
        "one task takes five, three take eleven"
    )
    assert found.writes_archiving == pytest.approx(found.rounds.archives_per_gib * 4), "32 MiB in two parts"
    assert found.other_writes == pytest.approx(1.6 * 11 + 2 * 16 / 60 * 6)
    assert found.other_reads == pytest.approx(1.6 * 18 + 2 * 16 / 60 * 60 + 64)
