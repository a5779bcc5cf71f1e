"""What a look at something outside, such as a catalog, has found, and what it means: values only."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class CheckStatus(enum.StrEnum):
    """What one question has come to."""

    FINE = "fine"
    NOTE = "note"
    """Good to know; nothing is wrong."""
    UNTOLD = "untold"
    """Nobody could tell: it is away, or was not asked."""
    WRONG = "wrong"
    """It would not work with that."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One question and its answer."""

    check: str
    """What was asked, such as `reachable` or `table NAME`."""
    verdict: CheckStatus
    told: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Everything about one of them."""

    name: str
    kind: str
    """Its `type`."""
    findings: tuple[CheckResult, ...]

    @property
    def verdict(self) -> CheckStatus:
        """The worst of them; a note is as good as fine."""
        return worst(item.verdict for item in self.findings)


def worst(verdicts: Iterable[CheckStatus]) -> CheckStatus:
    """What is wrong weighs more than what is not told."""
    found = set(verdicts)
    return next((one for one in (CheckStatus.WRONG, CheckStatus.UNTOLD) if one in found), CheckStatus.FINE)
