"""Keeps the result of an audit or a reconciliation that a command did by itself, for the status page.

A daemon on this machine reads it at its next watch. A result that cannot be kept changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from archiver.cli.output import progress

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.daemon.cycles import Summary

Found = TypeVar("Found")


def kept_result(
    app: Application, job: str, work: Callable[[], Found], summarize: Callable[[Found], Summary]
) -> Found:
    """Do the work of the whole deployment, and keep its result. Raises what `work` raises."""
    from archiver.runtime.local_file import replace_local_file
    from archiver.status.command_result import encode, result_path
    from archiver.status.journal import Cycle

    began_us, began_s = app.clock.now_us(), app.clock.monotonic_s()
    found = work()
    summary, seconds = summarize(found), app.clock.monotonic_s() - began_s
    cycle = Cycle(job, began_us, seconds, summary.outcome, summary.line, summary.document, by=app.owner)
    path = result_path(app.settings.metadata.local_path, job)
    try:
        # Readable like the status page, which shows the same text to all who can connect.
        replace_local_file(path, encode(cycle, app.cluster.cluster_id), 0o644)
    except OSError as error:
        progress(f"the status page will not show it: {path} cannot be written: {error.strerror}")
    return found
