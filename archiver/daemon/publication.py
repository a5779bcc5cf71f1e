"""The job that publishes control events.

Owns the publisher of a daemon, which is made when there is first something to publish to. Promises that
nothing of it holds up a round, and that a broker that is away is told and waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from archiver.control_topic.publisher import EventPublisher, PublishedState
from archiver.daemon.cycles import Summary, told_of
from archiver.runtime.errors import ArchiverError, LeaseHeld
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted


class Publication:
    """Runs the publisher. One thread at a time runs and closes it; any may ask."""

    def __init__(self, make: Callable[[], EventPublisher]) -> None:
        """`make` makes the publisher; raises while what it needs is not there."""
        self._make = make
        self._publisher: EventPublisher | None = None

    @property
    def state(self) -> PublishedState | None:
        """What is seen of it; None before the first run."""
        return None if self._publisher is None else self._publisher.state

    def notes(self) -> list[str]:
        """What an operator should know."""
        state = self.state
        if state is None or state.trouble is None:
            return []
        behind = (
            "" if not state.lag else f"; {counted(state.lag, 'entry', 'entries')} of the control log wait"
        )
        return [f"control topic {state.topic}: {state.trouble}{behind}"]

    def run(self) -> Summary:
        """One run. Raises what making the publisher raises, and what nobody expected."""
        if self._publisher is None:
            self._publisher = self._make()
        publisher = self._publisher
        try:
            events = publisher.run()
        except LeaseHeld as held:
            publisher.look(None, held.holder)
            return Summary("skipped", f"{held.holder} publishes", idle=True)
        except ArchiverError as error:
            before = publisher.state.trouble
            publisher.look(excerpt(str(error), MESSAGE_MAX))
            return replace(
                told_of(error), idle=publisher.state.trouble == before
            )  # one that lasts is no news each second
        except Exception as error:
            publisher.look(excerpt(told_of(error).line, MESSAGE_MAX))
            raise
        publisher.look(None)
        if not events:
            return Summary("fine", "nothing to publish", idle=True)
        return Summary("fine", f"{counted(events, 'event')} published", {"events": events})

    def close(self) -> None:
        """Publish nothing more."""
        if self._publisher is not None:
            self._publisher.close()
