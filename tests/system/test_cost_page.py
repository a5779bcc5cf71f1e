"""Does the section Cost of docs/performance.md say what was measured, and what follows from it and from the settings?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.settings import Settings, load_settings
from bench.cost_model import (
    BUFSTREAM,
    CLEANING,
    FEWER_REQUESTS,
    KAFKA,
    PUBLISHED,
    bytes_table,
    intake_age_s,
    month_table,
    requests_table,
    results,
)
from bench.cost_requests import GIB

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Cost\n")[2].partition("\n## ")[0]
WORDS = " ".join(SECTION.split())

measured = cache(results)


@cache
def printed(table: Callable[[Mapping[str, Any]], list[str]]) -> list[str]:
    return table(measured())


@pytest.mark.parametrize("table", [bytes_table, requests_table, month_table])
def test_the_table_is_what_was_measured(table: Callable[[Mapping[str, Any]], list[str]]) -> None:
    assert "\n".join(printed(table)) in SECTION, "python -m bench.cost_model prints it"


def test_what_is_said_of_the_tables() -> None:
    messages = measured()["cost"]["messages"]
    halves = [message["archive_by_kafka"]["1MiB"] for name, message in messages.items() if name != "payload"]
    assert all(0.45 < half < 0.6 for half in halves) and "an archive takes half of a segment" in WORDS
    larger = max(message["by_raw"]["intake"] / message["by_raw"]["kafka_1MiB"] for message in messages.values()) - 1
    assert f"up to {100 * larger:.0f} % larger" in WORDS
    (payload,) = [row.split("|")[-2].strip() for row in printed(month_table) if row.startswith("| together ")]
    assert f"comes to ${payload}" in WORDS
    four = [message["intake_reads"]["15000000"]["gets"]["288"] / 288 for message in messages.values()]
    assert all(round(gets) == 4 for gets in four) and "some four GETs each time" in WORDS


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
    archive, cleanup, intake = settings.archive, settings.cleanup, settings.intake
    assert archive.round_bytes_max / archive.tick / GIB == 0.8
    assert "8 GiB every 10 s" in WORDS and "0.8 GiB/s" in WORDS
    assert intake_age_s(cleanup) / 3600 == 10 and "10 hours on average" in WORDS
    assert intake_age_s(CLEANING) / 3600 == 3.5 and "3.5 hours" in WORDS
    assert archive.snapshots_max * archive.complete_delay_max > 8 * 3600 and "more than eight hours" in WORDS
    assert 1 / intake.delay_max == 5 and "five files a second" in WORDS


def test_published_figures_are_those_that_are_reckoned_with() -> None:
    assert f"${BUFSTREAM:,}" in WORDS and f"${KAFKA:,}" in WORDS
    for price in (0.023, 0.022, 0.021, PUBLISHED.writes, PUBLISHED.reads, PUBLISHED.between_zones):
        assert f"${price}" in WORDS
    assert f"${PUBLISHED.core:.2f}" in WORDS and f"${PUBLISHED.disk:.3f}" in WORDS
