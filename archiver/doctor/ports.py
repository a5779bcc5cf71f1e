"""Checks of the ports: each is free, or this deployment's own daemon listens there."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any

from archiver.config.settings import Settings
from archiver.config.types import PORT_MAX
from archiver.daemon.storage_preflight import checked_place
from archiver.doctor.report import Finding, Outcome, not_applicable, ok, problem, unknown
from archiver.objects.cluster import read_cluster
from archiver.objects.open import open_store
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import excerpt
from archiver.web.listener import address_trouble, check_address, listening_process

OwnDaemon = Callable[[Settings, str], Mapping[str, Any] | None]
"""The group `daemon` of the status document of the daemon at `http.listen`, if it is of the cluster with that
id; at least `state`, `ready` and `checks`."""
HTTP, KAFKA = "http.listen", "kafka.listen"
PORTS_TRIED = 20
"""Following ports, of which the first free one is proposed."""


def http_port(settings: Settings, own_daemon: OwnDaemon) -> Finding:
    """The port of the daemon."""
    return _port(HTTP, settings.http.listen, settings, own_daemon)


def kafka_port(settings: Settings, own_daemon: OwnDaemon) -> Finding:
    """The port for Kafka clients."""
    if settings.kafka is None:
        return not_applicable("no port for Kafka clients is configured")
    if "intake" not in settings.roles:
        return not_applicable("the roles of this machine have no port for Kafka clients")
    return _port(KAFKA, settings.kafka.listen, settings, own_daemon)


def _port(setting: str, listen: str, settings: Settings, own_daemon: OwnDaemon) -> Finding:
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        return ok("port 0: the daemon selects a free one")
    error = _trouble(host, int(port))
    if error is None:
        return ok(f"{listen} is free")
    if error.errno != errno.EADDRINUSE:
        return closed(setting, listen, error)
    following = range(int(port) + 1, min(int(port) + PORTS_TRIED, PORT_MAX) + 1)
    free = next((number for number in following if _trouble(host, number) is None), None)
    found = _taken(setting, listen, settings, own_daemon, error)
    if found.outcome is Outcome.PROBLEM and free is not None:
        return problem(found.found, f"{found.remedy}, for example `{setting}: {host}:{free}`")
    return found


def _trouble(host: str, port: int) -> OSError | None:
    try:
        check_address(host.strip("[]"), port)
    except OSError as error:
        return error
    return None


def _taken(setting: str, listen: str, settings: Settings, own_daemon: OwnDaemon, error: OSError) -> Finding:
    try:
        identity = read_cluster(open_store(checked_place(settings)))
    except ArchiverError as trouble:
        return unknown(
            f"a program listens at {listen}; whether it is this deployment's daemon is unknown: {trouble}",
            "repair the object store first, then run this again",
        )
    if settings.http.listen.endswith(":0"):
        return unknown(
            f"a program listens at {listen}, and `{HTTP}` has no number by which a daemon could be asked",
            f"see the daemon's log, or give `{HTTP}` a number",
        )
    # Before the first start there is no daemon of this deployment.
    daemon = None if identity is None else own_daemon(settings, identity.cluster_id)
    return judge_taken(setting, listen, daemon, error, own_daemon_at(listen))


def own_daemon_at(listen: str) -> str:
    """The daemon that listens there, with its process id if this machine shows it."""
    process = listening_process(int(listen.rpartition(":")[2]))
    return "this deployment's daemon" + ("" if process is None else f" (process {process})")


def judge_taken(
    setting: str,
    listen: str,
    daemon: Mapping[str, Any] | None,
    error: OSError,
    own: str = "this deployment's daemon",
) -> Finding:
    """The finding on an address in use; `daemon` is this deployment's own, if it runs, and `own` names it."""
    if daemon is None:
        return closed(setting, listen, error)
    if setting == HTTP:
        ready = "ready" if daemon["ready"] else "not ready; `archiver status` says why"
        return ok(f"{listen} is in use by {own}, which is {ready}")
    # Without its token the daemon does not say which ports it has, only what fails.
    failed = next(
        (one["why"] for one in daemon["checks"] if one["name"] == "Kafka port" and not one["ok"]), None
    )
    listener = daemon.get("kafka", {})
    if failed is None and listener is not None and not listener.get("closed_because"):
        return ok(f"{listen} is in use by {own}")
    if listener is None:
        return problem(
            f"a program listens at {listen}, and this deployment's daemon has no port for Kafka clients",
            f"restart the daemon if `kafka` is new, else stop that program or set {setting} to another port",
        )
    return problem(
        excerpt(str(failed or listener["closed_because"])),
        f"stop the other program, or set `{setting}` to another port and restart the daemon",
    )


def closed(setting: str, listen: str, error: OSError) -> Finding:
    """The finding on an address that the daemon could not open."""
    trouble = address_trouble(error, f"`{setting}`")
    if trouble is None:
        return problem(f"{listen} cannot be opened: {error}", f"correct `{setting}`")
    return problem(f"{listen} cannot be opened: {trouble[0]}", trouble[1])
