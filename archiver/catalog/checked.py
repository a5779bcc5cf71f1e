"""What a look at a catalog has found, and what it means: values only."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What one question to a catalog has come to."""

    FINE = "fine"
    NOTE = "note"
    """Good to know; nothing is wrong."""
    UNTOLD = "untold"
    """Nobody could tell: the catalog is away, or was not asked."""
    WRONG = "wrong"
    """Archiving to it would not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One question and its answer."""

    check: str
    """`reachable`, `namespace NAME`, `table NAME`, `requests`, or of a probe `create`, `location`, `field ids`, `case`, `metadata`,
    `requirements`, `removal`."""
    verdict: Verdict
    told: str


@dataclass(frozen=True, slots=True)
class CatalogChecked:
    """Everything about one catalog."""

    name: str
    kind: str
    """Its `type`."""
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of them; a note is as good as fine."""
        return worst(item.verdict for item in self.findings)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """What is wrong weighs more than what is not told."""
    found = set(verdicts)
    return next((one for one in (Verdict.WRONG, Verdict.UNTOLD) if one in found), Verdict.FINE)
