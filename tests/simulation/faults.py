"""What goes wrong in a run, and how often: a profile per kind of trouble, one with all at once, one with
none."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property


class Fate(enum.Enum):
    """What happens to one request that changes something."""

    FINE = "fine"
    REFUSED = "refused"
    """An error; nothing is applied."""
    DROPPED = "dropped"
    """No answer comes; it is never applied."""
    LATE = "late"
    """No answer comes; it is applied some time later."""
    REPLY_LOST = "reply lost"
    """It is applied at once; no answer comes."""
    TWICE = "twice"
    """It is applied at once, and the network delivers it once more later."""


class Blow(enum.Enum):
    """What happens to a process between two of its steps."""

    NONE = "none"
    CRASH = "crash"
    """Its memory is gone; a request it has sent may still arrive."""
    PAUSE = "pause"
    """It sleeps for long, as after SIGSTOP."""
    REPLACED = "replaced"
    """It is taken for dead: another process does its work, while it goes on."""
    CLOCK = "clock"
    """Its wall clock is stepped."""
    CUT = "cut off"
    """For a while it gets no answers: what it sends is lost, or arrives late."""


@dataclass(frozen=True)
class Profile:
    """Chances, each per step of a process (blows) or per request (fates)."""

    name: str
    crash: float = 0.0
    pause: float = 0.0
    replaced: float = 0.0
    clock: float = 0.0
    cut: float = 0.0
    refused: float = 0.0
    dropped: float = 0.0
    late: float = 0.0
    reply_lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    """That a request takes a second instead of milliseconds."""
    damage: float = 0.0
    """That a checkpoint or a history file is stored with a wrong bit, or has one after the log was trimmed
    (the newest checkpoint, once)."""
    clock_step_us: int = 0
    """How far a clock is stepped at most, either way."""

    @cached_property
    def blows(self) -> tuple[tuple[Blow, float], ...]:
        """Each blow and its chance."""
        return (
            (Blow.CRASH, self.crash),
            (Blow.PAUSE, self.pause),
            (Blow.REPLACED, self.replaced),
            (Blow.CLOCK, self.clock),
            (Blow.CUT, self.cut),
        )

    @cached_property
    def fates(self) -> tuple[tuple[Fate, float], ...]:
        """Each fate and its chance."""
        return (
            (Fate.REFUSED, self.refused),
            (Fate.DROPPED, self.dropped),
            (Fate.LATE, self.late),
            (Fate.REPLY_LOST, self.reply_lost),
            (Fate.TWICE, self.twice),
        )


PROFILES = (
    Profile("calm"),
    Profile("crashes", crash=0.03, reply_lost=0.02),
    Profile("pauses", pause=0.03, replaced=0.015, slow=0.05),
    Profile("lost replies", dropped=0.06, late=0.1, reply_lost=0.1, twice=0.05),
    Profile("lost replies and errors", dropped=0.05, late=0.05, reply_lost=0.1, refused=0.15),
    Profile("cut off", cut=0.02, replaced=0.01),
    Profile("errors", refused=0.15, slow=0.1),
    Profile("clocks", clock=0.05, clock_step_us=8_000_000, pause=0.01, crash=0.005),
    Profile(
        "everything",
        crash=0.015,
        pause=0.015,
        replaced=0.008,
        clock=0.02,
        cut=0.005,
        refused=0.03,
        dropped=0.02,
        late=0.05,
        reply_lost=0.04,
        twice=0.02,
        slow=0.03,
        clock_step_us=3_000_000,
    ),
    Profile("sleepers", crash=0.003, pause=0.06, late=0.04, replaced=0.02),
    Profile("damage", damage=0.2, crash=0.015, reply_lost=0.02),
)
"""A seed belongs to the profile at its remainder."""
