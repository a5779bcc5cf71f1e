"""Check of this machine's clock against other machines, by the `Date` header of a server.

The bucket comes first: the daemon compares its clock with it at each start. Then come the catalogs of type
`rest` and the schema registry. A deployment without a server has only the times of its own files.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterable
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from archiver.config.settings import CatalogSettings, Settings
from archiver.daemon.storage_preflight import checked_place
from archiver.doctor.report import Finding, not_applicable, ok, problem, unknown, warning
from archiver.objects.open import open_store
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import excerpt
from intake.log.clock_check import StatesTime, certain_skew_us

REMEDY = "correct the wrong clock (`timedatectl status` shows whether it is synchronized)"
COMPARE = "compare `date -u` with another machine, and run a time service such as chrony"
TIMEOUT_S = 10.0
"""Longest silence of a server; a `Date` header needs no long answer."""
Source = tuple[str, Callable[[], int | None]]
"""A name, and the time that it states, in microseconds since 1970; None if it states none."""


def clock_skew(settings: Settings, clock: Clock) -> Finding:
    """Compare with the first server that states its time."""
    silent = []
    asked = False
    for name, stated in _sources(settings):
        asked = True
        before_us = clock.now_us()
        try:
            stated_us = stated()
        except (ArchiverError, OSError, http.client.HTTPException, ValueError) as error:
            silent.append(f"{name}: {excerpt(str(error))}")
            continue
        if stated_us is not None:
            skew_us = certain_skew_us(before_us, stated_us, clock.now_us())
            return judge_skew(name, skew_us / 1e6, settings.intake.clock_skew_max)
        silent.append(f"{name}: it states no time")
    if asked:
        return unknown(f"no server states its time ({'; '.join(silent)})", COMPARE)
    if settings.metadata.etcd is not None:
        return unknown("etcd states no time, and there is no other server", COMPARE)
    return judge_files(_newest_us(settings), clock.now_us(), settings.intake.clock_skew_max)


def judge_skew(name: str, ahead_s: float, skew_max_s: float) -> Finding:
    """The finding on a clock that is certainly so many seconds ahead; negative: behind."""
    if ahead_s > skew_max_s:
        return problem(
            f"this machine's clock is {ahead_s:,.0f} s ahead of {name}; beyond intake.clock_skew_max = "
            f"{skew_max_s:g} s a daemon accepts no records",
            REMEDY,
        )
    if -ahead_s > skew_max_s:
        return warning(f"this machine's clock is {-ahead_s:,.0f} s behind {name}", REMEDY)
    if abs(ahead_s) < 1:
        return ok(f"within a second of {name}")
    return ok(f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} {name}")


def judge_files(newest_us: int | None, now_us: int, skew_max_s: float) -> Finding:
    """The finding on a clock that can only be compared with the newest file of the metadata store."""
    if newest_us is None:
        return not_applicable("there is no other machine and no file yet to compare it with")
    ahead_s = (newest_us - now_us) / 1e6
    if ahead_s > skew_max_s:
        return warning(
            "this machine's clock was set back: the metadata store was written "
            f"{ahead_s:,.0f} s in the future",
            REMEDY,
        )
    return ok(
        "not behind the newest file of the metadata store; there is no other machine to compare it with"
    )


def _sources(settings: Settings) -> Iterable[Source]:
    place = checked_place(settings)
    if place.is_s3:
        store = open_store(place)
        assert isinstance(store, StatesTime), "a bucket states its time"
        yield "the object store", store.time_us
    for group in settings.catalogs:
        address = group.properties().get("uri", "") if group.type == "rest" else ""
        if address:
            yield f"catalog {group.name}", _from_catalog(address, group)
    confluent = settings.schema_registry.confluent
    if confluent is not None:
        ca = None if confluent.tls is None or confluent.tls.ca is None else str(confluent.tls.ca)
        yield "the schema registry", lambda: stated_us(confluent.url, ca, min(TIMEOUT_S, confluent.timeout))


def _from_catalog(address: str, group: CatalogSettings) -> Callable[[], int | None]:
    ca = group.properties().get("ssl.cabundle")
    timeout_s = min(TIMEOUT_S, group.request_timeout)
    return lambda: stated_us(f"{address.rstrip('/')}/v1/config", ca, timeout_s)


def stated_us(url: str, ca_file: str | None, timeout_s: float) -> int | None:
    """The time in the `Date` header of an answer, of any status; None without a valid one.

    It sends no credentials and follows no redirect. Raises `OSError`, `http.client.HTTPException` and
    `ValueError`.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(
            host, port, timeout=timeout_s, context=ssl.create_default_context(cafile=ca_file)
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=timeout_s)
    )
    with closing(connection):
        connection.request("HEAD", parts.path or "/")
        stated = connection.getresponse().getheader("Date")
    try:
        return None if stated is None else round(parsedate_to_datetime(stated).timestamp() * 1e6)
    # A date that a proxy has garbled counts as no date.
    except (TypeError, ValueError, OverflowError):
        return None


def _newest_us(settings: Settings) -> int | None:
    path: Path = settings.metadata.local_path
    files = (path, path.with_name(f"{path.name}-wal"))
    return max((file.stat().st_mtime_ns // 1000 for file in files if file.is_file()), default=None)
