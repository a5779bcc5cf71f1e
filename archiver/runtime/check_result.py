"""The result of checking an external system, such as a catalog: values only."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class CheckStatus(enum.StrEnum):
    """The result of one check."""

    FINE = "fine"
    NOTE = "note"
    """Information; nothing is wrong."""
    # The text is part of the JSON output, so it stays.
    UNKNOWN = "untold"
    """Unknown: the system is unreachable, or was not checked."""
    WRONG = "wrong"
    """The system would not work with this configuration."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its result."""

    check: str
    """The name of the check, such as `reachable` or `table NAME`."""
    verdict: CheckStatus
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """All checks of one system."""

    name: str
    kind: str
    """Its `type`."""
    findings: tuple[CheckResult, ...]

    @property
    def verdict(self) -> CheckStatus:
        """The worst result; a note counts as fine."""
        return worst(item.verdict for item in self.findings)


def worst(verdicts: Iterable[CheckStatus]) -> CheckStatus:
    """The worst result: wrong before unknown."""
    found = set(verdicts)
    # An unknown part could still be fine, so a part that is wrong decides first.
    return next((one for one in (CheckStatus.WRONG, CheckStatus.UNKNOWN) if one in found), CheckStatus.FINE)
