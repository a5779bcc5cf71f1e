"""A section of the page: the source of its figures, its text, and its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.performance.measured import Measured, Spread
from scripts.performance.words import Writing, listed, paragraph, ratio, shown, whole

NO_AIM = "no target"


@dataclass(frozen=True)
class Case:
    """One measured case of a target."""

    measured: str
    reached: bool | None
    """None where there is no target."""
    name: str = ""
    """Empty where there is only one."""


@dataclass(frozen=True)
class Aim:
    """A target and its result."""

    subject: str
    what: str
    target: str
    cases: Sequence[Case]

    def row(self) -> list[str]:
        """The row of the table at the head of the page."""
        text = ", ".join(f"{case.name} {case.measured}".lstrip() for case in self.cases)
        return [self.subject, self.what, self.target, text, verdict(self.cases)]


def at_least(target: float, spread: Spread, how: Writing = ratio, name: str = "") -> Case:
    """A case that its median decides."""
    return Case(shown(spread, how), spread.middle >= target, name)


def at_most(target: float, spread: Spread, how: Writing = ratio, name: str = "") -> Case:
    """A case that its median decides."""
    return Case(shown(spread, how), spread.middle <= target, name)


def verdict(cases: Sequence[Case]) -> str:
    """One word if all cases agree, else the names of the reached and of the missed cases."""
    judged = [case for case in cases if case.reached is not None]
    good, bad = ([case.name for case in judged if case.reached is reached] for reached in (True, False))
    if not judged:
        return "-"
    if not good or not bad:
        return "reached" if good else "**missed**"
    return f"reached: {listed(good)}; **missed**: {listed(bad)}"


@dataclass(frozen=True)
class Section:
    """The text and the targets of one measurement."""

    title: str
    sources: Sequence[tuple[str, Measured]]
    """Targets of make, each with the result it writes."""
    parts: Sequence[str]
    """Paragraphs and tables, each with the end of its last line."""
    aims: Sequence[Aim] = ()

    def text(self) -> str:
        """The section in Markdown."""
        bullet = "- " if len(self.sources) > 1 else ""
        sources = "".join(paragraph(bullet + source(*one)) for one in self.sources)
        return "\n".join([f"## {self.title}\n", sources, *self.parts])


def source(target: str, result: Measured) -> str:
    """The command, file, machine and versions of a result, as far as the result has them."""
    machine = f"{result.at('machine.system').value}, {whole(result.number('machine.cores'))} cores"
    versions = [
        f"{name} {part.value}"
        for name, part in result.parts("versions").items()
        if isinstance(part.value, str)
    ]
    return f"`make {target}`, `{result.file}`: {machine}{load(result)}; {', '.join(versions)}."


def load(result: Measured) -> str:
    """The load average of the machine before or after the run, empty if it was not recorded."""
    for name in ("machine.load_before", "load_average_before.0", "load", "load_average.0", "load_at_end"):
        if result.has(name):
            return f", load {result.number(name):.1f}"
    return ""
