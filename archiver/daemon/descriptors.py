"""Limit of open files: raised at the start, and divided between connections of the port and all other files.

Many systems start a process with a soft limit of 1,024 and a much higher hard limit. Each connection takes a
descriptor. If connections took all, the metadata store, the object store and Spark's gateway would fail.
Child processes inherit the limit.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

LIMIT_MAX = 65_536
"""Upper bound of the raised soft limit: some programs iterate over every possible descriptor."""
RESERVE = 512
"""Descriptors for the archiver itself. Measured: 46 while a daemon with Spark archived, audited and cleaned
in local folders. Connections to stores, brokers, etcd and catalogs are extra, at most 32 to a bucket."""
RESERVE_SHARE = 0.5
"""Share reserved of a limit below twice the reserve."""


def raise_limit() -> int:
    """Raise the soft limit towards the hard limit; returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError) as error:
        _log.warning(
            "the limit of open files stays at %d, it cannot be raised to %d: %s", soft, allowed, error
        )
        return soft
    return allowed


def connections_within(limit: int, connections_max: int) -> int:
    """Connections that the port may have beyond the reserve; warns if fewer than `connections_max`."""
    reserve = min(RESERVE, round(RESERVE_SHARE * limit))
    possible = max(1, limit - reserve)
    if possible >= connections_max:
        return connections_max
    _log.warning(
        "the port accepts at most %d connections instead of %d: %d files may be open, and %d of them "
        "are kept for the daemon itself; raise "
        "the hard limit (LimitNOFILE= of the systemd unit, ulimit -Hn) to %d",
        *(possible, connections_max, limit, reserve, connections_max + RESERVE),
    )
    return possible
