"""Export of the daemon's metrics to an OpenTelemetry collector.

Each export has the families, names and labels of `/metrics`. Nothing is raised into the daemon.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from archiver.config.settings import Settings
from archiver.config.telemetry import OtlpSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.metric_names import METRICS
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.status.lag_metrics import Family

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

_log = logging.getLogger(__name__)

SERVICE = "stream-archiver"
LIBRARY = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
"""Logger of the library. Only its messages say why an export failed."""


class OtlpExport:
    """Exports periodically if the settings name a collector. `start` it once; `stop` does not wait."""

    def __init__(
        self,
        settings: Settings,
        families: Callable[[], Iterable[Family]],
        owner: str,
        version: str,
        clock: Clock,
    ) -> None:
        """`owner` names this process. Raises `ConfigInvalid` if required OpenTelemetry packages are
        missing.
        """
        self._settings = settings.telemetry.otlp
        self._families = families
        self._resource = {
            "service.name": SERVICE,
            "service.namespace": settings.cluster,
            "service.instance.id": owner,
            "service.version": version,
        }
        self._clock = clock
        self._started_ns = clock.now_us() * 1000
        self._done = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None
        if self._settings is not None:
            # In the constructor, so that missing packages end the start and not the first export.
            self._exporter = _exporter(self._settings)
            # No other work waits for the collector. A daemon thread, because an export may hang at the end.
            self._thread = threading.Thread(
                target=self._run, args=(self._settings,), name="otlp", daemon=True
            )

    def start(self) -> None:
        """Start; the first export comes at once."""
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """Begin no further export; a running one ends by itself or with the process."""
        self._done.set()

    def _run(self, otlp: OtlpSettings) -> None:
        while not self._done.is_set():
            try:
                why = self._sent(otlp.timeout)
            except Exception as error:  # noqa: BLE001 - the head of a loop that must not end
                why = f"{type(error).__name__}: {error}"
            # An export that the shutdown cut off is no news.
            if not self._done.is_set():
                self._log_change(otlp.url, why)
            self._done.wait(otlp.interval)

    def _sent(self, timeout_s: float) -> str | None:
        """Export once; why it failed, or None."""
        # The packages are an extra, so they are imported only with a configured collector.
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = metrics_data(self._families(), self._resource, self._started_ns, self._clock.now_us() * 1000)
        # The result of the exporter has no reason; the library only logs it.
        with _CapturedLog() as captured:
            result = self._exporter.export(data, timeout_millis=timeout_s * 1000)
        return (
            None
            if result is MetricExportResult.SUCCESS
            else captured.first or "the exporter does not say why"
        )

    def _log_change(self, url: str, why: str | None) -> None:
        # One line when a failure begins and one when it ends, not one for each export.
        if why is not None and not self._failing:
            _log.warning(
                "metrics do not reach the collector %s, and are sent again: %s",
                url,
                excerpt(why, MESSAGE_MAX),
            )
        elif why is None and self._failing:
            _log.info("metrics reach the collector %s again", url)
        self._failing = why is not None


class _CapturedLog(logging.Filter):
    """Captures the messages of the library instead of logging them."""

    first = ""

    def __enter__(self) -> Self:
        logging.getLogger(LIBRARY).addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(LIBRARY).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        # The first message says why; later ones report retries.
        self.first = self.first or record.getMessage()
        # Drops the record: at every failed export the library would fill the log.
        return False


def _exporter(settings: OtlpSettings) -> Any:
    try:
        import requests
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ConfigInvalid(
            f"telemetry.otlp needs the packages of OpenTelemetry ({error}); install "
            "stream-archiver[otlp], or take the key out"
        ) from error
    session = requests.Session()
    # Otherwise requests prefers the CA bundle of the environment to the configured one.
    session.trust_env = settings.ca_file is None
    session.hooks["response"] = [_no_redirect]
    return OTLPMetricExporter(
        session=session,
        endpoint=settings.url,
        certificate_file=None if settings.ca_file is None else str(settings.ca_file),
        headers={name.lower(): value.get_secret_value() for name, value in settings.headers.items()},
        timeout=settings.timeout,
        compression=Compression.Gzip,
    )


def _no_redirect(response: Any, *_: object, **__: object) -> None:
    """Refuse redirects."""
    # The exporter does not follow them, and counts every status below 400 as success.
    if response.is_redirect:
        raise OSError(f"it redirects to {response.headers['location']}; name that as the endpoint")


def metrics_data(
    families: Iterable[Family], resource: dict[str, str], began_ns: int, now_ns: int
) -> MetricsData:
    """Families as OpenTelemetry data; counters are monotonic sums since `began_ns` (nanoseconds since
    1970).
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [
        _metric(family, began_ns, now_ns)
        for family in families
        if family.samples or family.spread is not None
    ]
    scope = ScopeMetrics(InstrumentationScope(SERVICE), metrics, "")
    return MetricsData([ResourceMetrics(Resource(dict(resource)), [scope], "")])


def _metric(family: Family, began_ns: int, now_ns: int) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
        Sum,
    )

    described = METRICS[family.name]
    since_start = AggregationTemporality.CUMULATIVE
    if family.spread is not None:
        spread = family.spread
        counts, bounds = list(spread.counts), list(spread.bounds)
        # Minimum and maximum are not kept. The format allows that; the types of the library do not.
        unknown: Any = None
        point = HistogramDataPoint(
            {}, began_ns, now_ns, sum(counts), spread.total, counts, bounds, unknown, unknown
        )
        return Metric(family.name, described.text, "", Histogram([point], since_start))
    counts_up = described.kind == "counter"
    points = [
        NumberDataPoint(
            dict(zip(described.labels, labels, strict=True)),
            # A cumulative sum needs its start; a gauge has none.
            began_ns if counts_up else 0,
            now_ns,
            float(value),
        )
        for labels, value in sorted(family.samples.items())
    ]
    return Metric(
        family.name,
        described.text,
        "",
        Sum(points, since_start, is_monotonic=True) if counts_up else Gauge(points),
    )
