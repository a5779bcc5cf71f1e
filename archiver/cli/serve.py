"""`archiver serve`: the daemon."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli.options import ConfigOption, config_path
from archiver.runtime.errors import ArchiverError, InvalidInput
from archiver.runtime.pandas_later import put_off_pandas

if TYPE_CHECKING:
    from archiver.config.settings import Settings

# The values of `config.settings.Role`; the option replaces the setting `roles`.
ROLES = ("intake", "archive", "reconcile")


def serve(
    config: ConfigOption = None,
    roles: Annotated[
        str | None,
        typer.Option(
            "--roles",
            help="Comma-separated roles of this process: intake,archive,reconcile (default: `roles` of "
            "the file).",
        ),
    ] = None,
) -> int:
    """Run the daemon: ingest, archive, clean and audit. It runs until SIGTERM or Ctrl-C. SIGHUP reloads the
    configuration.

    While a dependency is unreachable, the daemon waits, reports it at /readyz and in the log, and continues
    by itself.
    """
    from archiver.config.settings import load_settings
    from archiver.daemon.signals import Signals

    path = config_path(config)
    # Before the signal handlers: an invalid file ends the process at once.
    settings = load_settings(path, os.environ)
    chosen = frozenset(settings.roles) if roles is None else parse_roles(roles)
    with Signals() as signals:  # before the imports, which take longest
        # A daemon needs pandas with its first Spark job, and one that only takes records never.
        put_off_pandas()
        from archiver.app.application import arm_failpoints
        from archiver.daemon.daemon import Daemon
        from archiver.runtime.logging import setup_logging

        setup_logging(logging.INFO)
        arm_failpoints(settings, os.environ)
        holder = partial(port_holder, settings)
        return Daemon(settings, path, os.environ, chosen, port_holder=holder).run(signals)


def port_holder(settings: Settings) -> str | None:
    """Which daemon has `http.listen`, and what to do, if it is one of this deployment; else None."""
    from archiver.cli.admin_client import readiness
    from archiver.daemon.storage_preflight import checked_place
    from archiver.doctor.ports import own_daemon_at
    from archiver.objects.cluster import read_cluster
    from archiver.objects.open import open_store

    try:
        identity = read_cluster(open_store(checked_place(settings)))
    except ArchiverError:
        return None
    # Before the first start there is no daemon of this deployment.
    if identity is None or readiness(settings, identity.cluster_id) is None:
        return None
    return (
        f"{own_daemon_at(settings.http.listen)} listens there already: end this one, or stop that one to "
        "replace it; a second daemon needs another http.listen"
    )


def parse_roles(text: str) -> frozenset[str]:
    """Parse comma-separated roles; raises `InvalidInput`."""
    given = [role.strip() for role in text.split(",")]
    # An empty part counts as unknown, so `--roles ,` is an error and not every role.
    unknown = next((role for role in given if role not in ROLES), None)
    if unknown is not None:
        raise InvalidInput(f"--roles {text}: there is no role {unknown!r}; the roles are {', '.join(ROLES)}")
    return frozenset(given)
