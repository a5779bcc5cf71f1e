"""Which daemon coordinates a consumer group, as clients find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from archiver.log.brokers import coordinator_of
from intake.log.consumer_groups import slot_of

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.log.brokers import Broker


def live_daemons(app: Application) -> list[Broker]:
    """The daemons that answer Kafka clients now."""
    kafka = app.settings.kafka
    # Each registration has a time limit of its own; this one is for a registration that is never made.
    return app.logs.brokers(10.0 if kafka is None else kafka.broker_timeout).live()


def coordinator_among(live: Sequence[Broker], group: str) -> Broker | None:
    """The live daemon that clients find for a group; None without one."""
    return coordinator_of(live, f"group-slot-{slot_of(group)}") if live else None


def coordinator_document(app: Application, live: Sequence[Broker], group: str) -> dict[str, Any]:
    """The slot of a group, its newest claim, and its coordinator."""
    slot = slot_of(group)
    claim = app.sequencer.fold.consumer_groups.claim(slot)
    found = coordinator_among(live, group)
    return {
        "slot": slot,
        "claim": None if claim is None else claim.number,
        "claimed_by": None if claim is None else claim.node_id,
        "node_id": None if found is None else found.node_id,
        "address": None if found is None else f"{found.host}:{found.port}",
    }
