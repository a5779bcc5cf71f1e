"""A real daemon that sends its metrics to a collector: a real HTTP server that reads them with
OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client.parser import text_string_to_metric_families

from archiver.runtime.metric_names import METRICS
from tests.support.builders.deployment import Deployment
from tests.support.log.etcd_certificates import make_certificates
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LOST, BACK = "metrics do not reach the collector", "metrics reach the collector"


class Collector:
    """What came, decoded; `mood` says how it answers: `good`, `angry` (503), `refusing` (400), `moved` (307)
    or `silent` (never)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Mapping[str, str], ExportMetricsServiceRequest]] = []
        self.mood = "good"
        self.over = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportMetricsServiceRequest.FromString(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append((self.path, headers, request))
                if collector.mood == "silent":
                    collector.over.wait()
                    return
                self.send_response({"good": 200, "angry": 503, "refusing": 400, "moved": 307}[collector.mood])
                self.send_header("Location", "/elsewhere")
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    @property
    def newest(self) -> dict[str, Metric]:
        """The metrics of the newest request, by name."""
        (resource,) = self.requests[-1][2].resource_metrics
        (scope,) = resource.scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
        assert len(found) == len(scope.metrics)
        return found


@contextmanager
def collecting(context: ssl.SSLContext | None = None) -> Iterator[Collector]:
    collector = Collector()
    if context is not None:
        collector.server.socket = context.wrap_socket(collector.server.socket, server_side=True)
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.over.set()
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()


def served(tmp_path: Path, otlp: Mapping[str, Any] | None) -> Served:
    deployment = Deployment(tmp_path / "deployment")
    document = quick(deployment.document())
    if otlp is not None:
        document["telemetry"] = {"otlp": {"interval": "1s", "timeout": "2s", **otlp}}
    deployment.write(document)
    return Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch")


def samples(metric: Metric) -> dict[tuple[str, ...], float]:
    points = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
    return {tuple(item.value.string_value for item in point.attributes): point.as_double for point in points}


def test_the_collector_gets_what_a_scrape_shows(tmp_path: Path) -> None:
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / "otlp-key").write_text("planted-key\n")
    with collecting() as collector:
        otlp = {"endpoint": f"http://127.0.0.1:{collector.port}", "headers": {"X-Key": {"file": "otlp-key"}}}
        with served(tmp_path, otlp) as daemon:
            daemon.until_ready()
            assert daemon.post("/v1/topics/clicks/records", b'{"value": null}\n' * 3).status == 200
            stored, requests = "archiver_intake_records_ok_total", "archiver_http_requests_total"
            until(
                "three records and their request are reported",
                # A request is counted after its records.
                lambda: (
                    stored in collector.newest
                    and sum(samples(collector.newest[stored]).values()) == 3
                    and ("/v1/topics/{topic}/records", "200") in samples(collector.newest[requests])
                ),
            )
            scraped = {
                family.name if family.type != "counter" else f"{family.name}_total": family
                for family in text_string_to_metric_families(daemon.get("/metrics").body.decode())
            }
            path, headers, request = collector.requests[-1]
            assert path == "/v1/metrics"
            assert headers["x-key"] == "planted-key"
            assert headers["content-type"] == "application/x-protobuf"
            (resource,) = request.resource_metrics
            whose = {item.key: item.value.string_value for item in resource.resource.attributes}
            assert {"service.name": "stream-archiver", "service.namespace": "test"}.items() <= whose.items()
            assert whose["service.instance.id"].endswith(f":{daemon.pid}")
            newest = collector.newest
            assert set(newest) == {
                name for name, family in scraped.items() if name.startswith("archiver_") and family.samples
            }
            for name, metric in newest.items():
                reported = METRICS[name]
                assert metric.description == reported.text
                kind = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[reported.kind]
                assert metric.WhichOneof("data") == kind
                assert kind != "histogram", "only who archives has one"
                if reported.kind == "counter":
                    assert metric.sum.is_monotonic
                    assert (
                        metric.sum.aggregation_temporality
                        == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                    )
                    assert all(
                        0 < point.start_time_unix_nano < point.time_unix_nano
                        for point in metric.sum.data_points
                    )
                assert {
                    tuple(item.key for item in point.attributes)
                    for point in getattr(metric, kind).data_points
                } == {reported.labels}
                shown = {
                    tuple(sample.labels[label] for label in reported.labels)
                    for sample in scraped[name].samples
                }
                assert set(samples(metric)) == shown
            assert sum(samples(newest["archiver_log_entries"]).values()) > 0
            assert daemon.stop() == 0
            assert "planted-key" not in daemon.log_text()


@pytest.mark.turns(2)
@pytest.mark.parametrize("mood", ["angry", "refusing", "moved", "silent"])
def test_a_collector_that_does_not_take_them_costs_one_line(tmp_path: Path, mood: str) -> None:
    with collecting() as collector:
        collector.mood = mood
        with served(tmp_path, {"endpoint": f"http://127.0.0.1:{collector.port}"}) as daemon:
            daemon.until_ready()
            until("several exports came to nothing", lambda: len(collector.requests) >= 3)
            until("it is told", lambda: daemon.logged(LOST))
            assert daemon.post("/v1/topics/clicks/records", b'{"value": null}\n').status == 200
            assert [line["level"] for line in daemon.logged(LOST)] == ["warning"]
            collector.mood = "good"
            collector.over.set()
            until("it is told that they get there", lambda: daemon.logged(BACK))
            assert not [line for line in daemon.logged() if line["logger"].startswith("opentelemetry")]
            assert daemon.stop() == 0


def test_a_daemon_starts_and_stops_without_its_collector(tmp_path: Path) -> None:
    with collecting() as collector:
        port = collector.port
    with served(tmp_path, {"endpoint": f"http://127.0.0.1:{port}", "timeout": "60s"}) as daemon:
        daemon.until_ready()
        assert daemon.stop() == 0, "nobody waits for the minute"


def test_the_certificate_of_the_collector_is_verified(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    with collecting(context) as collector:
        endpoint = f"https://127.0.0.1:{collector.port}"
        with served(tmp_path, {"endpoint": endpoint}) as daemon:
            until(
                "it is told",
                lambda: any("CERTIFICATE_VERIFY_FAILED" in line["message"] for line in daemon.logged(LOST)),
            )
            assert collector.requests == []
            assert daemon.stop() == 0
        with served(
            tmp_path, {"endpoint": endpoint, "ca_file": str(made.authority), "timeout": "30s"}
        ) as daemon:
            until("something came", lambda: collector.requests)
            assert daemon.logged(LOST) == []
            assert daemon.stop() == 0
