"""The settings of metrics export to an OpenTelemetry collector.

Plain values only. The docstring under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, model_validator

from archiver.config.types import Duration, FilePath, Group, Located, Secret, bad_endpoint

SIGNAL_PATH = "/v1/metrics"
"""The path of metrics on a collector, defined by OpenTelemetry."""
# The characters of a token in HTTP.
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)


class OtlpSettings(Group):
    """A collector for OTLP over HTTP ([its page](operations/watching.md#opentelemetry)); needs
    `stream-archiver[otlp]`.
    """

    endpoint: str
    """Address of the collector, `https://host:4318`. `/v1/metrics` is added unless it has a path."""
    allow_http: StrictBool = False
    """Whether an `http://` `endpoint` may be on another machine, where others can read topic names and
    headers on the way. Default `false`. Set it only on a trusted network; addresses of this machine
    (127.0.0.1, ::1, localhost) are always allowed."""
    ca_file: FilePath | None = None
    """PEM file of the authorities that may sign the collector's certificate, instead of the system's.
    Default: none. If it is set, proxy variables of the environment are ignored too."""
    headers: dict[str, Secret] = Field(default_factory=dict)
    """Headers of every request, such as `authorization`. Each value is `{env: NAME}` or `{file: PATH}`.
    Default: none."""
    interval: Annotated[Duration, Field(ge=1, le=3600)] = 15.0
    """Time between two exports. Each contains all series of `/metrics` except those of the process itself.
    Default 15 s."""
    timeout: Annotated[Duration, Field(gt=0, le=600)] = 10.0
    """Longest time for one export, with its retries. Default 10 s. Values that do not arrive in time are not
    sent again: the next export has newer ones. One export runs at a time, and no other work waits for it."""

    @property
    def url(self) -> str:
        """The full address for metrics."""
        return (
            # An address with a path is complete.
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
            # A line feed in a value would begin a further header.
            elif not value.get_secret_value().isprintable() or not value.get_secret_value().isascii():
                problems.append((("headers", name), "its value has characters that a header cannot have"))
        if problems:
            raise Located(problems)
        return self


class TelemetrySettings(Group):
    """What the daemon exports in addition to `/metrics`."""

    otlp: OtlpSettings | None = None
    """An OpenTelemetry collector. Default: none, and no telemetry is exported."""
