"""Scrapes as Prometheus reads them: every sample by its name and labels."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from archiver.runtime.metric_names import METRICS
from archiver.status.lag_metrics import Family
from archiver.web.metrics import exposition

Series = tuple[str, frozenset[tuple[str, str]]]


def series(name: str, **labels: object) -> Series:
    """The key of a sample."""
    return name, frozenset((label, str(value)) for label, value in labels.items())


def scraped(text: bytes) -> dict[Series, float]:
    """Every sample; no series may be there twice, and none may be missing in the table."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    strangers = table_names(found) - set(METRICS)
    assert not strangers, strangers
    return found


def table_names(found: Iterable[Series]) -> set[str]:
    """The names of the table behind the samples: a histogram has three kinds of them."""
    names = {name for name, _ in found}
    histograms = [name for name, metric in METRICS.items() if metric.kind == "histogram"]
    for name in histograms:
        parts = {f"{name}_{part}" for part in ("bucket", "count", "sum")}
        if parts & names:
            names = names - parts | {name}
    return names


def shown(families: Iterable[Family]) -> dict[Series, float]:
    """The samples of families, by way of the text."""
    return scraped(exposition(families))
