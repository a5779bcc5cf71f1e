"""Job `control_topic`: publishes control events to Kafka.

It never delays a round. An unavailable broker is reported, and publishing continues when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from archiver.control_topic.publisher import EventPublisher, PublishedState
from archiver.daemon.cycles import Summary, summarize_error
from archiver.runtime.errors import ArchiverError, LeaseHeld
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted


class Publication:
    """Runs the publisher. One thread at a time runs and closes it; any thread may read its state."""

    def __init__(self, create: Callable[[], EventPublisher]) -> None:
        """`create` creates the publisher; it raises while what the publisher needs is missing."""
        self._create = create
        self._publisher: EventPublisher | None = None

    @property
    def state(self) -> PublishedState | None:
        """State of the publisher; None before the first run."""
        return None if self._publisher is None else self._publisher.state

    def notes(self) -> list[str]:
        """Notes for the operator."""
        state = self.state
        if state is None or state.trouble is None:
            return []
        behind = (
            "" if not state.lag else f"; {counted(state.lag, 'entry', 'entries')} of the control log wait"
        )
        return [f"control topic {state.topic}: {state.trouble}{behind}"]

    def run(self) -> Summary:
        """Publish once. Raises what creating the publisher raises, and unexpected errors."""
        if self._publisher is None:
            self._publisher = self._create()
        publisher = self._publisher
        try:
            events = publisher.run()
        except LeaseHeld as held:
            publisher.update_state(None, held.holder)
            return Summary("skipped", f"{held.holder} publishes", idle=True)
        except ArchiverError as error:
            before = publisher.state.trouble
            publisher.update_state(excerpt(str(error), MESSAGE_MAX))
            # The job runs every second: an error that lasts is logged at `DEBUG`.
            return replace(summarize_error(error), idle=publisher.state.trouble == before)
        except Exception as error:
            publisher.update_state(excerpt(summarize_error(error).line, MESSAGE_MAX))
            raise
        publisher.update_state(None)
        if not events:
            return Summary("fine", "nothing to publish", idle=True)
        return Summary("fine", f"{counted(events, 'event')} published", {"events": events})

    def close(self) -> None:
        """Stop publishing."""
        if self._publisher is not None:
            self._publisher.close()
