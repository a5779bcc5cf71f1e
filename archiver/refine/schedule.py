"""When a daemon looked at which topic: what lets it pass over the idle ones.

Owns nothing but memory of one process. Losing it costs one look at every topic, so nothing is kept. A topic
of which a look found nothing to do rests for `start_delay_max`; one that was archived is looked at again in
the next round, for it may have more.
"""

from __future__ import annotations

from archiver.refine.triggers import look_due


class PollState:
    """The looks of one process. One thread at a time."""

    def __init__(self) -> None:
        self._last_us: dict[str, int] = {}
        self._whole: set[str] = set()

    def due(self, topic: str, now_us: int, start_delay_max: float) -> bool:
        """May the topic be looked at again?"""
        return look_due(self._last_us.get(topic), now_us, start_delay_max)

    def looked(self, topic: str, now_us: int) -> None:
        """It was looked at."""
        self._last_us[topic] = now_us

    def whole(self, topic: str) -> bool:
        """Was the topic ready for archiving when it was last prepared, so that it needs to be prepared again
        only if there is work?
        """
        return topic in self._whole

    def ended(self, topic: str, state: str) -> None:
        """How the topic's part of a run ended, as `TopicReport.state` says."""
        if state in ("idle", "archived"):
            self._whole.add(topic)
        else:
            self._whole.discard(topic)
        if state == "archived":
            self._last_us.pop(topic, None)
