"""The settings of what the daemon tells to others by itself: its metrics, to a collector of OpenTelemetry.

Plain values only. The text under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, model_validator

from archiver.config.types import Duration, FilePath, Group, Located, Secret, bad_endpoint

SIGNAL_PATH = "/v1/metrics"
"""Where a collector takes metrics, by OpenTelemetry's rule."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)


class OtlpSettings(Group):
    """A collector that takes OTLP over HTTP ([its page](operations/watching.md#opentelemetry)); needs
    `stream-archiver[otlp]`.
    """

    endpoint: str
    """Address of the collector, `https://host:4318`. `/v1/metrics` is added unless it has a path."""
    allow_http: StrictBool = False
    """Whether an `endpoint` with `http://` may be another machine: names of topics, and the headers, could
    then be read on the way. On this machine (127.0.0.1, ::1, localhost) it needs no leave."""
    ca_file: FilePath | None = None
    """PEM file of the authorities that may vouch for the collector's certificate, in place of the usual ones.
    Then the environment is not asked for proxies either."""
    headers: dict[str, Secret] = Field(default_factory=dict)
    """Headers of every request, such as `authorization`. Each is `{env: NAME}` or `{file: PATH}`."""
    interval: Annotated[Duration, Field(ge=1, le=3600)] = 15.0
    """Time between two exports. Each has everything that `/metrics` has, but for the process's own
    numbers."""
    timeout: Annotated[Duration, Field(gt=0, le=600)] = 10.0
    """How long one export may take, with its repetitions. What did not get there by then is not sent again:
    the next export has newer numbers. There is one at a time, and nothing else waits for it."""

    @property
    def url(self) -> str:
        """Where metrics are sent."""
        return (
            self.endpoint.rstrip("/") + SIGNAL_PATH
            if urlsplit(self.endpoint).path in ("", "/")
            else self.endpoint
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        why = bad_endpoint(
            self.endpoint,
            self.allow_http,
            example="https://otel.example.com:4318",
            credentials="headers",
            path=True,
        )
        if why is not None:
            problems.append((("endpoint",), why))
        if self.ca_file is not None and not self.ca_file.is_file():
            problems.append((("ca_file",), f"there is no file {self.ca_file}"))
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name):
                problems.append((("headers",), f"{name[:80]!r} is not the name of a header"))
            elif not value.get_secret_value().isprintable() or not value.get_secret_value().isascii():
                problems.append((("headers", name), "what it names has characters that a header cannot have"))
        if problems:
            raise Located(problems)
        return self


class TelemetrySettings(Group):
    """What the daemon tells by itself, besides what it shows at `/metrics`."""

    otlp: OtlpSettings | None = None
    """A collector of OpenTelemetry. Left out: none, and nothing is sent anywhere."""
