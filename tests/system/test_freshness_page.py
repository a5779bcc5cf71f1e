"""The eager profile of docs/operations/freshness.md is a valid configuration, and the page's statements
follow from it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from archiver.config.settings import Settings, load_settings
from archiver.runtime.logging import METRICS
from bench.freshness import PARTITIONS, eager_archive

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations/freshness.md").read_text(encoding="utf-8")


def loaded(tmp_path: Path, **groups: object) -> Settings:
    document = {
        "cluster": "one",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "metadata.db"}},
        **groups,
    }
    (tmp_path / "archiver.yaml").write_text(yaml.safe_dump(document))
    return load_settings(tmp_path / "archiver.yaml", {})


def test_the_eager_profile_archives_with_every_tick(tmp_path: Path) -> None:
    eager = loaded(tmp_path, archive=eager_archive()).archive
    assert eager.start_delay_max < eager.complete_delay_max < eager.tick
    assert eager.idle_max <= eager.complete_delay_max
    assert (eager.min_bytes, eager.max_bytes) == (0, 128 * 2**20), (
        "what the page does not name is as it is by default"
    )


def test_the_table_has_the_defaults(tmp_path: Path) -> None:
    archive = loaded(tmp_path).archive
    assert (archive.complete_delay_max, archive.idle_max, archive.max_bytes, archive.tick) == (
        300.0,
        30.0,
        128 * 2**20,
        10.0,
    )
    assert archive.start_delay_max == 10.0
    assert "| 5 minutes, 30 s, 128 MiB |" in PAGE and "| 10 s, 10 s |" in PAGE


def test_what_the_page_reckons(tmp_path: Path) -> None:
    eager = loaded(tmp_path, archive=eager_archive()).archive
    commits = 86_400 / eager.tick
    page = " ".join(PAGE.split())
    assert f"with {PARTITIONS} partitions these are {commits * PARTITIONS:,.0f} files" in page
    assert f"and {commits:,.0f} commits a day" in page
    assert f"keeps {loaded(tmp_path).archive.snapshots_age / eager.tick:.0f} snapshots" in page


def test_metrics_that_this_page_names_exist() -> None:
    assert set(re.findall(r"`(archiver_[a-z_]+)`", PAGE)) <= set(METRICS)
