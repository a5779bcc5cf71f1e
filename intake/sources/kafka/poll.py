"""One look at the cluster on its way to what is read: its result, when the next one is due, and which answers
need a second one.

Pure. An answer that would mean lost records (the position lies outside of what the partition has) counts only
if the next look agrees: a leader that was just elected, or a cluster that was just resumed, may report old
bounds for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from intake.sources.kafka.batch import Cursor
from intake.sources.kafka.upstream import Place
from intake.sources.kafka.upstream_changes import WITHOUT_ID, GoOn, MirrorFinding

LOOK_AGAIN_S = 1.0
"""After so long the cluster is looked at again when a partition stopped for a reason that a look finds, or
when an answer is missing or needs a second one (then after twice as long each time)."""
NOT_TOLD: Final = (
    "has no offsets that the cluster reports now, perhaps because it has no leader; it is asked again"
)
UNCONFIRMED: Final = (
    "has bounds in the cluster that do not fit what was taken in; it is asked again before anything is "
    "concluded"
)

REFUSED_MAX = 1000
ASKED_AGAIN: Final = frozenset({NOT_TOLD, UNCONFIRMED, WITHOUT_ID})
"""Findings that end by themselves, with an answer."""


@dataclass(slots=True)
class Look:
    """The result of one look."""

    findings: dict[Place | str, MirrorFinding] = field(default_factory=dict)
    ready: dict[Place, Cursor] = field(default_factory=dict)
    """Partitions that can be read from where the log says."""
    reads: dict[Place, tuple[int, int | None]] = field(default_factory=dict)
    """Where the reading of each begins: behind the last record that is in, with its leader epoch, if the
    cluster still has that place."""

    _refused: int = 0
    refused_more: int = 0
    """Topics that cannot be mirrored beyond `REFUSED_MAX`: counted, and not remembered one by one."""

    def refuse(self, name: str, why: str) -> None:
        """A topic of the cluster that cannot be mirrored; a cluster may have any number of them."""
        if self._refused < REFUSED_MAX:
            self._refused += 1
            self.findings[name] = MirrorFinding("refused", name, None, why)
        else:
            self.refused_more += 1

    def is_open(self) -> bool:
        """Whether an answer is missing or needs a second one."""
        return any(one.why in ASKED_AGAIN for one in self.findings.values())


class LookPace:
    """When the next look is due: a leader that is being elected answers soon; one that stays away must not
    cost a look each second.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._again_s = LOOK_AGAIN_S

    def wait_s(self, look: Look) -> float:
        """Time until the look after this one."""
        if not look.is_open():
            self._again_s = LOOK_AGAIN_S
            return self._interval_s
        wait_s = min(self._again_s, self._interval_s)
        self._again_s = 2 * wait_s
        return wait_s


class SecondAnswers:
    """Verdicts that wait for a second answer that agrees. Bounded by the partitions that are mirrored."""

    def __init__(self) -> None:
        self._judged: dict[Place, tuple[str, int]] = {}
        self._truncated: dict[Place, int] = {}

    def confirmed(self, cursor: Cursor, verdict: GoOn | MirrorFinding) -> bool:
        """Whether the verdict may stand. One that changes nothing always may; it also ends every
        suspicion.
        """
        if isinstance(verdict, GoOn) and verdict.offset == cursor.base:
            self._judged.pop(cursor.place, None)
            return True
        judged = (verdict.kind if isinstance(verdict, MirrorFinding) else "given up", cursor.base)
        before, self._judged[cursor.place] = self._judged.get(cursor.place), judged
        return before == judged

    def truncation_confirmed(self, cursor: Cursor) -> bool:
        """The client reports that the log was cut off below the position; whether it did so before, at the
        same position.
        """
        before, self._truncated[cursor.place] = self._truncated.get(cursor.place), cursor.base
        return before == cursor.base
