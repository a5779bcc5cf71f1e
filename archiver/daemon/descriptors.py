"""The limit of open files: raised at the start, and divided between the port's connections and everything
else that the daemon opens.

Many systems start a process with a soft limit of 1,024 and a much higher hard one. Connections take a
descriptor each; if they may take all of them, the metadata store, the object store and Spark's gateway fail.
Child processes inherit the raised limit and count for themselves.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

LIMIT_MAX = 65_536
"""The soft limit is raised to no more than this, because some programs walk over every descriptor that is
allowed."""
RESERVE = 512
"""For the archiver itself. A daemon with Spark had 46 open while it archived, audited and cleaned in local
folders. Connections to stores, brokers, etcd and catalogs come on top of that, at most 32 to a bucket."""
RESERVE_SHARE = 0.5
"""Of a limit below twice the reserve."""


def raise_limit() -> int:
    """Raise the soft limit towards the hard one; the number of files that may be open now."""
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
    """How many connections the port may have so that the reserve is left; logged where that is fewer than
    `connections_max`.
    """
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
