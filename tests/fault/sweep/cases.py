"""Every case of the sweep, and the share of them that is played where time is short."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Final

from tests.fault.sweep.scenes import SCENES, SPARK_SCENES, Scene
from tests.support.amount import DAY, WHOLE

VARIABLE = "ARCHIVER_FAULT_SHARE"
"""`whole` plays every case; a number is the seed of a third of them. Without it a run plays the share of its day."""
THIRDS: Final = ("kill", "pause", "error")
"""What happens at a point. Of these the share takes one for each point, so that every point is reached with
any seed."""
DAYS: Final = 4
"""A point is played every so many days."""
SPARK_DAYS: Final = 12
"""The same with Spark."""
IN_ADDITION: Final = "unknown"
"""A lost reply, where a caller waits for one: played with the whole only."""


@dataclass(frozen=True)
class Case:
    """One point, reached in one scene, and what happens there."""

    scene: Scene
    point: str
    action: str

    @property
    def fault(self) -> str:
        """In one word."""
        return f"{self.point}={self.action}"

    @property
    def in_worker(self) -> bool:
        """Whether the point is reached by a Spark worker."""
        return self.scene.spark and self.point.startswith("archive.upload.")

    def __str__(self) -> str:
        return f"{self.scene.name}-{self.point}-{self.action}"


def every_case() -> list[Case]:
    """All of them that need no Spark, in the order of the scenes."""
    return [
        Case(scene, point, action)
        for scene in SCENES
        for point in scene.names
        for action in (*THIRDS, IN_ADDITION)
    ]


def spark_cases() -> list[Case]:
    """Those with Spark."""
    return [
        Case(scene, point, action) for scene in SPARK_SCENES for point in scene.names for action in THIRDS
    ]


def share(cases: list[Case], asked: str | None = None) -> list[Case]:
    """The cases to be played, in their order."""
    asked = os.environ.get(VARIABLE, "whole" if WHOLE else "today") if asked is None else asked
    if asked == "today":
        return share_of_day(cases, DAY)
    if asked == "whole":
        return cases
    if not asked.isdigit():
        raise ValueError(f"{VARIABLE}={asked}: it must be whole, or the seed of a third")
    return [
        case
        for case in cases
        if case.action == random.Random(f"{asked}/{case.scene.name}/{case.point}").choice(THIRDS)
    ]


def share_of_day(cases: list[Case], day: int) -> list[Case]:
    """Every fourth point, or every twelfth point with Spark, each in one of its scenes and with one action.

    The next time that a point is played it has another scene, and after all its scenes another action. So a point of one
    scene has every action in twelve days, one of three scenes everything in 36; with Spark, where a case takes half a
    minute, all have in 36.
    """
    scenes: dict[str, dict[str, None]] = {}
    for case in cases:
        scenes.setdefault(case.point, {})[case.scene.name] = None
    numbers = {point: number for number, point in enumerate(scenes)}
    found = []
    for case in cases:
        turn, rest = divmod(numbers[case.point] + day, SPARK_DAYS if case.scene.spark else DAYS)
        turn, place = divmod(turn, len(scenes[case.point]))
        today = (list(scenes[case.point])[place], THIRDS[turn % len(THIRDS)])
        if rest == 0 and (case.scene.name, case.action) == today:
            found.append(case)
    return found
