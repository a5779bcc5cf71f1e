"""What a daemon shows of its Kafka listener: in the status document, on the status page and as metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from archiver.runtime.metric_names import (
    GROUP_STATES,
    KAFKA_APIS,
    KAFKA_CUTS,
    KAFKA_ERRORS,
    KAFKA_ORIGINS,
    OFFSET_COMMITS,
    OTHER_VALUE,
)
from archiver.status.lag_metrics import Family

# Errors of which the first one matters: `increase` needs a sample from before it.
_FROM_ZERO: Final = (("Produce", "UNKNOWN_SERVER_ERROR"), ("Fetch", "CORRUPT_MESSAGE"))


_BY_NAME: Final = ("requests", "seconds", "refused", "fetched")
_PLAIN: Final = ("bytes_in", "bytes_out", "connections", "throttled", "produced_batches", "produced_records")


class ListenerCounts:
    """Counters since the process started. The listener's thread changes them, any thread reads them."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        """Answered requests, by Kafka's name of the API."""
        self.seconds: dict[str, float] = {}
        """Time from a whole request to its answer, by API."""
        self.errors: dict[tuple[str, str], int] = dict.fromkeys(_FROM_ZERO, 0)
        """Errors in answers, by API and Kafka's name of the error. One answer may have one per partition."""
        self.refused: dict[str, int] = {}
        """Connections that were cut off, by reason (`KAFKA_CUTS`)."""
        self.fetched: dict[str, int] = {}
        """Partitions in answers to Fetch that had records, by where the first was read from."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        """Open now."""
        self.throttled = 0
        """Answers that ask the client to wait."""
        self.produced_batches = 0
        self.produced_records = 0
        """Stored record batches and their records; a repeated batch that was stored before counts again."""

    def to_json(self) -> dict[str, Any]:
        """The counters, for another process."""
        # Copies, because the listener adds keys at the same time.
        return {
            **{name: dict(getattr(self, name)) for name in _BY_NAME},
            **{name: getattr(self, name) for name in _PLAIN},
            "errors": [[*labels, count] for labels, count in dict(self.errors).items()],
        }

    def add(self, counts: Mapping[str, Any]) -> None:
        """Add the counters of another process, of `to_json`. An empty mapping adds nothing."""
        for name in _BY_NAME:
            own = getattr(self, name)
            for key, count in counts.get(name, {}).items():
                own[key] = own.get(key, 0) + count
        for name in _PLAIN:
            setattr(self, name, getattr(self, name) + counts.get(name, 0))
        for api, error, count in counts.get("errors", ()):
            self.errors[api, error] = self.errors.get((api, error), 0) + count

    def refuse(self, reason: str) -> None:
        """Count a connection that is cut off."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def answered(self, api: str, seconds: float) -> None:
        """Count a request that is answered, or that needs no answer."""
        self.requests[api] = self.requests.get(api, 0) + 1
        self.seconds[api] = self.seconds.get(api, 0.0) + seconds

    def failed(self, api: str, errors: Mapping[str, int]) -> None:
        """Count the errors of an answer, by name."""
        for name, count in errors.items():
            key = api, name if name in KAFKA_ERRORS else OTHER_VALUE
            self.errors[key] = self.errors.get(key, 0) + count

    def produced(self, records: int) -> None:
        """Count a stored batch."""
        self.produced_batches += 1
        self.produced_records += records

    def fetch(self, origin: str) -> None:
        """Count a partition of an answer to Fetch (`KAFKA_ORIGINS`)."""
        self.fetched[origin] = self.fetched.get(origin, 0) + 1


@dataclass(slots=True)
class GroupCounts:
    """Consumer groups of a daemon: now, and counters since the process started. The listener's thread changes
    them, any thread reads them.
    """

    states: Mapping[str, int] = field(default_factory=dict)
    """Groups by Kafka's name of their state (`GROUP_STATES`)."""
    members: int = 0
    slots: int = 0
    """Slots of groups that this daemon coordinates."""
    slots_lost: int = 0
    """Slots that another daemon coordinates since."""
    rebalances: int = 0
    """Rebalances that ended."""
    commits: dict[str, int] = field(default_factory=dict)
    """Commits of offsets by their outcome (`OFFSET_COMMITS`)."""

    def committed(self, outcome: str) -> None:
        """Count a commit."""
        self.commits[outcome] = self.commits.get(outcome, 0) + 1


@dataclass(frozen=True, slots=True)
class WorkersShown:
    """The intake workers of a daemon."""

    configured: int
    """`intake.workers`."""
    serving: int
    restarts: int
    """Processes that were started in place of ended ones."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A live daemon in the list that Kafka clients are given."""

    node_id: int
    host: str
    port: int
    rack: str
    """Empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPort:
    """State of the listener."""

    listen: str
    """Configured address (`kafka.listen`)."""
    address: str | None
    """Host and port that clients are given; None while the port is closed."""
    closed_because: str | None
    """Why the port is closed; None while it is open, or before the first attempt."""
    registered: bool
    """Whether the last renewal of the registration succeeded, so that clients are sent here."""
    unregistered_because: str | None
    live: Sequence[LiveBroker]
    """The live daemons as of the last renewal."""
    counts: ListenerCounts = field(default_factory=ListenerCounts)
    groups: GroupCounts = field(default_factory=GroupCounts)
    workers: WorkersShown | None = None
    """None if the daemon serves the connections itself."""


def kafka_document(port: KafkaPort) -> dict[str, Any]:
    """The group `kafka` of a daemon in the status document."""
    counts = port.counts
    return {
        "listen": port.listen,
        "address": port.address,
        "closed_because": port.closed_because,
        "registered": port.registered,
        "unregistered_because": port.unregistered_because,
        "live": [
            {"node_id": one.node_id, "host": one.host, "port": one.port, "rack": one.rack or None}
            for one in port.live
        ],
        "connections": counts.connections,
        "requests": dict(sorted(counts.requests.items())),
        "produced_records": counts.produced_records,
        "groups": dict(sorted(port.groups.states.items())),
        "group_members": port.groups.members,
        "workers": None
        if port.workers is None
        else {
            "configured": port.workers.configured,
            "serving": port.workers.serving,
            "restarts": port.workers.restarts,
        },
    }


def kafka_families(port: KafkaPort) -> list[Family]:
    """Metrics of the listener."""
    counts, groups, workers = port.counts, port.groups, port.workers
    # Copies: the listener's thread adds keys while a scrape reads.
    requests, seconds, errors = dict(counts.requests), dict(counts.seconds), dict(counts.errors)
    return [
        Family("archiver_kafka_up", {(): float(port.address is not None)}),
        Family("archiver_kafka_registered", {(): float(port.registered)}),
        Family("archiver_kafka_live_daemons", {(): float(len(port.live))}),
        Family("archiver_kafka_connections", {(): float(counts.connections)}),
        Family("archiver_kafka_connections_refused_total", _of(dict(counts.refused), KAFKA_CUTS)),
        Family(
            "archiver_kafka_requests_total",
            # From the first scrape on, so that `rate` shows the first requests.
            {(api,): float(count) for api, count in ({"Produce": 0, "Fetch": 0} | requests).items()},
        ),
        Family(
            "archiver_kafka_request_seconds_total",
            {(api,): took for api, took in ({"Produce": 0.0, "Fetch": 0.0} | seconds).items()},
        ),
        Family("archiver_kafka_errors_total", {labels: float(count) for labels, count in errors.items()}),
        Family("archiver_kafka_received_bytes_total", {(): float(counts.bytes_in)}),
        Family("archiver_kafka_sent_bytes_total", {(): float(counts.bytes_out)}),
        Family("archiver_kafka_throttled_total", {(): float(counts.throttled)}),
        Family("archiver_kafka_produced_batches_total", {(): float(counts.produced_batches)}),
        Family("archiver_kafka_produced_records_total", {(): float(counts.produced_records)}),
        Family("archiver_kafka_fetched_partitions_total", _of(dict(counts.fetched), KAFKA_ORIGINS)),
        Family("archiver_kafka_groups", _of(dict(groups.states), GROUP_STATES)),
        Family("archiver_kafka_group_members", {(): float(groups.members)}),
        Family("archiver_kafka_group_slots", {(): float(groups.slots)}),
        Family("archiver_kafka_group_slots_lost_total", {(): float(groups.slots_lost)}),
        Family("archiver_kafka_group_rebalances_total", {(): float(groups.rebalances)}),
        Family("archiver_kafka_offset_commits_total", _of(dict(groups.commits), OFFSET_COMMITS)),
        *(
            []
            if workers is None
            else [
                Family("archiver_intake_workers", {(): float(workers.serving)}),
                Family("archiver_intake_worker_restarts_total", {(): float(workers.restarts)}),
            ]
        ),
    ]


def _of(counts: Mapping[str, int], values: Sequence[str]) -> dict[tuple[str, ...], float]:
    return {(value,): float(counts.get(value, 0)) for value in values}


@cache
def api_name(api: str) -> str:
    """Kafka's name of an API, from its name in capitals: `INIT_PRODUCER_ID` is `InitProducerId`."""
    name = "".join(part.capitalize() for part in api.split("_"))
    return name if name in KAFKA_APIS else OTHER_VALUE
