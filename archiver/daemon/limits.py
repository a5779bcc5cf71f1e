"""Limits of a process of the daemon: open files, connections, and the garbage collector."""

from __future__ import annotations

import gc
import logging
import resource

from archiver.config.settings import Settings

_log = logging.getLogger(__name__)

OBJECTS = 10_000
"""More than one request of the client holds (`intake.sources.kafka.client`); cycles keep little memory until
then."""


def collect_less_often() -> None:
    """Raise the threshold of the garbage collector for this process."""
    # Only of the youngest generation: the thresholds of the older ones count collections, not objects.
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])


# Some programs close or iterate over every possible descriptor, so an unlimited number costs them time.
LIMIT_MAX = 65_536
"""Upper bound of the raised soft limit of open files."""
RESERVE = 512
"""Descriptors for the archiver itself. Measured: 46 while a daemon with Spark archived, audited and cleaned
in local folders. Connections to stores, brokers, etcd and catalogs are extra, at most 32 to a bucket."""
RESERVE_SHARE = 0.5
"""Share reserved of a limit below twice the reserve."""


def allowed_limit(soft: int, hard: int) -> int:
    """The limit to which `raise_limit` can raise this process; at least the present one."""
    if soft == resource.RLIM_INFINITY:
        return LIMIT_MAX
    return max(soft, LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX))


def raise_limit() -> int:
    """Raise the soft limit towards the hard limit; returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = allowed_limit(soft, hard)
    # Python has -1 for an infinite limit, so it must not be compared by size.
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return allowed
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError) as error:
        # Python raises `ValueError` for EPERM and EINVAL. The daemon runs with fewer connections.
        _log.warning(
            "the limit of open files stays at %d, it cannot be raised to %d: %s", soft, allowed, error
        )
        return soft
    return allowed


def connections_within(limit: int, connections_max: int) -> int:
    """Connections that the port may have beyond the reserve; warns if fewer than `connections_max`."""
    reserve = min(RESERVE, round(RESERVE_SHARE * limit))
    # At least one, so that health checks and commands still reach the daemon.
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


def files_needed(connections_max: int, kafka_connections_max: int) -> int:
    """The limit of open files from which on neither port has fewer connections than these."""
    of_both = RESERVE + connections_max + kafka_connections_max
    # The listener's connections and their reserve must fit into half of the limit.
    return max(of_both, 2 * (RESERVE + kafka_connections_max)) if kafka_connections_max else of_both


def kafka_connections(settings: Settings, limit: int) -> int:
    """Most connections of Kafka clients within a limit of descriptors; 0 without a listener."""
    if settings.kafka is None:
        return 0
    return connections_within(limit // 2, settings.kafka.connections_max)
