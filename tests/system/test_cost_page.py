"""The statements of the section Cost of docs/performance.md follow from the settings and from the published
figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from archiver.config.settings import Settings, load_settings
from bench.cost_model import BUFSTREAM, CLEANING, FEWER_REQUESTS, KAFKA, PUBLISHED, intake_age_s
from bench.cost_requests import GIB

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Cost\n")[2].partition("\n## ")[0]
WORDS = " ".join(SECTION.split())


def loaded(tmp_path: Path, **groups: Any) -> Settings:
    data = {"uri": "data", **groups.pop("data", {})}
    document = {"cluster": "one", "data": data, "metadata": {"sqlite": {"path": "metadata.db"}}, **groups}
    (tmp_path / "archiver.yaml").write_text(yaml.safe_dump(document))
    return load_settings(tmp_path / "archiver.yaml", {})


def test_the_settings_for_fewer_requests_are_those_that_are_reckoned_with(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    groups = yaml.safe_load(block)
    groups["data"]["uri"] = "s3://bucket/prefix"
    settings = loaded(tmp_path, **groups)
    assert settings.data.part_bytes == FEWER_REQUESTS["part_bytes"]
    assert settings.intake == FEWER_REQUESTS["intake"]
    assert settings.spark.task_bytes == FEWER_REQUESTS["spark"].task_bytes
    assert settings.cleanup == CLEANING
    reckoned = FEWER_REQUESTS["archive"]
    assert settings.archive.model_copy(update={"concurrent_max": reckoned.concurrent_max}) == reckoned
    assert settings.archive.concurrent_max == 288, "or memory decides"


def test_what_the_defaults_allow(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert settings.archive.round_bytes_max / settings.archive.tick / GIB == 0.8
    assert "8 GiB every 10 s, one deployment archives 0.8 GiB/s at most" in WORDS
    assert intake_age_s(settings.cleanup) / 3600 == 10
    assert "With the defaults this is 10 hours after it was written" in WORDS
    assert f"With an interval of 1 h it is {intake_age_s(CLEANING) / 3600:g} hours" in WORDS


def test_published_figures_are_those_that_are_reckoned_with() -> None:
    assert f"${BUFSTREAM:,} ($5,963 for infrastructure, $5,184 for fees)" in WORDS
    assert BUFSTREAM == 5_963 + 5_184
    assert f"${KAFKA:,}" in WORDS
    for price in (0.023, 0.022, 0.021, PUBLISHED.writes, PUBLISHED.reads, PUBLISHED.between_zones):
        assert f"${price}" in WORDS
    assert f"${PUBLISHED.core:.2f}" in WORDS and f"${PUBLISHED.disk:.3f}" in WORDS
