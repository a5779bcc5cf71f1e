"""Metrics for an OpenTelemetry collector: the settings, and what is off by default."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from archiver.config.settings import Settings, load_settings
from archiver.config.telemetry import OtlpSettings
from archiver.daemon.otlp import OtlpExport, metrics_data
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.status.lag_metrics import Family, Spread
from tests.support.builders.deployment import ROOT

MINIMAL = yaml.safe_load((ROOT / "deploy" / "config" / "minimal.example.yaml").read_text())


def loaded(folder: Path, **otlp: Any) -> Settings:
    path = folder / "archiver.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "telemetry": {"otlp": otlp}}))
    return load_settings(path, {"KEY": "planted", "LINES": "a\nb"})


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://otel.example.com:4318", "https://otel.example.com:4318/v1/metrics"),
        ("https://otel.example.com/", "https://otel.example.com/v1/metrics"),
        ("https://otel.example.com/otlp/v1/metrics", "https://otel.example.com/otlp/v1/metrics"),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("http://localhost:4318", "http://localhost:4318/v1/metrics"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
    ],
)
def test_where_metrics_are_sent(tmp_path: Path, endpoint: str, url: str) -> None:
    otlp = loaded(tmp_path, endpoint=endpoint).telemetry.otlp
    assert otlp is not None
    assert otlp.url == url


@pytest.mark.parametrize(
    ("otlp", "words"),
    [
        ({"endpoint": "http://otel.example.com:4318"}, "allow_http: true"),
        ({"endpoint": "otel.example.com:4318"}, "is not an address"),
        ({"endpoint": "https://otel.example.com:99999"}, "is not an address"),
        ({"endpoint": "https://otel.example.com/?a=b"}, "is not an address"),
        ({"endpoint": "grpc://otel.example.com:4317"}, "is not an address"),
        ({"endpoint": "https://a.example", "ca_file": "absent.pem"}, "there is no file"),
        ({"endpoint": "https://a.example", "headers": {"a": "open"}}, "not a reference to a secret"),
        ({"endpoint": "https://a.example", "headers": {"a b": {"env": "KEY"}}}, "not the name of a header"),
        ({"endpoint": "https://a.example", "headers": {"a": {"env": "LINES"}}}, "a header cannot have"),
        ({"endpoint": "https://a.example", "interval": "100ms"}, "at least 1s"),
        ({"endpoint": "https://a.example", "timeout": 0}, "more than 0s"),
        ({"endpoint": "https://a.example", "every": "1s"}, "there is no such key"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, otlp: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        loaded(tmp_path, **otlp)


def test_a_password_in_the_address_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="credentials belong in headers") as caught:
        loaded(tmp_path, endpoint="https://me:hush@a.example")
    assert "hush" not in str(caught.value)


def test_another_machine_may_be_reached_in_the_clear_if_configured(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        endpoint="http://otel.example.com:4318",
        allow_http=True,
        headers={"authorization": {"env": "KEY"}},
    )
    assert settings.telemetry.otlp is not None
    assert "planted" not in repr(settings)


def test_nothing_begins_without_the_setting(tmp_path: Path) -> None:
    (tmp_path / "archiver.yaml").write_text(yaml.safe_dump(MINIMAL))
    settings = load_settings(tmp_path / "archiver.yaml", {})
    assert settings.telemetry.otlp is None
    before = threading.active_count()
    export = OtlpExport(settings, list, "here:1", "1", SystemClock())
    export.start()
    assert threading.active_count() == before
    export.stop()


def test_the_packages_are_loaded_only_for_the_setting() -> None:
    program = (
        "import sys, archiver.daemon.daemon; print([name for name in sys.modules if "
        "name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigInvalid, match=r"stream-archiver\[otlp\]"):
        OtlpExport(loaded(tmp_path, endpoint="https://a.example"), list, "here:1", "1", SystemClock())


def test_families_become_points() -> None:
    """The exporter's own encoder is the judge: the test decodes what it sends."""
    families = [
        Family("archiver_commit_seconds", spread=Spread((0.5, 1.0), (3, 2, 1), 4.5)),
        Family("archiver_commits_total", {("orders", "committed"): 7.0, ("orders", "unknown"): 0.0}),
        Family("archiver_lag_seconds", {("orders", "0", "committed"): 1.5}),
        Family("archiver_freshness_seconds", {}),
    ]
    sent = encode_metrics(metrics_data(families, {"service.name": "a"}, began_ns=5, now_ns=9))
    (scope,) = sent.resource_metrics[0].scope_metrics
    spread, counted, gauge = scope.metrics
    (point,) = spread.histogram.data_points
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([0.5, 1.0], [3, 2, 1])
    assert (point.count, point.sum, point.start_time_unix_nano, point.time_unix_nano) == (6, 4.5, 5, 9)
    assert not point.HasField("min")
    assert not point.HasField("max")
    assert [(item.key, item.value.string_value) for item in counted.sum.data_points[0].attributes] == [
        ("topic", "orders"),
        ("end", "committed"),
    ]
    assert [one.as_double for one in counted.sum.data_points] == [7.0, 0.0]
    assert [one.start_time_unix_nano for one in counted.sum.data_points] == [5, 5]
    (value,) = gauge.gauge.data_points
    assert (value.as_double, value.time_unix_nano) == (1.5, 9)


def test_the_defaults_leave_time_for_one_export_in_each_turn() -> None:
    fields = OtlpSettings.model_fields
    assert fields["timeout"].default < fields["interval"].default
