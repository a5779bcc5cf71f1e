"""Prometheus' text format of the metrics, and the counter of requests; the only use of prometheus_client.

It keeps no numbers. Each scrape is built from the given families and from the process metrics of the system.
No value of a label may make it raise.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from archiver.runtime.clock import Clock
from archiver.runtime.metric_names import METRICS, ROUTES
from archiver.status.lag_metrics import Family, Spread
from archiver.web.read_endpoints import VIEWS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_READ: Final = frozenset(view.path.split("/")[1] for view in VIEWS)
"""First parts of the paths of what can be read."""
_TOPIC_RECORDS: Final = re.compile(r"/v1/topics/[^/]+/records")


def exposition(families: Iterable[Family]) -> bytes:
    """Families and process metrics in Prometheus' text format."""
    # A registry for each scrape: the global one of the library keeps state.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given([*map(_metric, families), *_process()]))
    return generate_latest(registry)


def counting(
    application: Application, requested: Callable[[str, int, float], None], clock: Clock
) -> Application:
    """Wrap the ASGI application: `requested` gets route (one of `ROUTES`), status and seconds of each
    request.
    """

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        # 500 is what the server answers if the application raises before its answer.
        began_s, status = clock.monotonic_s(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await application(scope, receive, noted)
        finally:
            # In `finally`, so that aborted requests count too.
            requested(route_of(scope["path"]), status, clock.monotonic_s() - began_s)

    return counted


def route_of(path: str) -> str:
    """Route of a path, from a closed set."""
    if _TOPIC_RECORDS.fullmatch(path):
        return "/v1/topics/{topic}/records"
    # A free path as label would let any client create series without end.
    if path in ROUTES:
        return path
    first, _, rest = path.removeprefix("/").partition("/")
    if path.startswith("/") and (first in _READ or path == "/style.css"):
        return "console"
    return "read" if path.startswith("/v1/") and rest.partition("/")[0] in _READ else "other"


class _Given(Collector):
    """Collector of finished metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def _metric(family: Family) -> Metric:
    described = METRICS[family.name]
    if family.spread is not None:
        return _histogram(family.name, described.text, family.spread)
    kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, described.text, labels=described.labels)
    # Sorted, so that two scrapes can be compared.
    for labels, value in sorted(family.samples.items()):
        metric.add_metric(labels, value)
    return metric


def _histogram(name: str, text: str, spread: Spread) -> Metric:
    # Prometheus has cumulative counts; the family has them per bound.
    bounds = [*(str(bound) for bound in spread.bounds), "+Inf"]
    return HistogramMetricFamily(
        name, text, buckets=list(zip(bounds, accumulate(spread.counts), strict=True)), sum_value=spread.total
    )


def _process() -> Iterator[Metric]:
    """Memory, file descriptors, CPU time and start of this process, with our help texts."""
    for metric in ProcessCollector(registry=None).collect():
        # The library drops the suffix from the name of a counter and adds it in the text.
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        # Newer versions of the library may add metrics that the documentation does not have.
        if name in METRICS:
            metric.documentation = METRICS[name].text
            yield metric
