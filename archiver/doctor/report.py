"""Results of `archiver doctor`: their order, text, document and exit code. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archiver.runtime.check_result import Checked, CheckStatus
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted

MESSAGES_MAX = 5
"""Messages of one system that a text repeats; a catalog has one for each table."""


class Outcome(enum.StrEnum):
    """The outcome of one check, the most urgent first."""

    PROBLEM = "problem"
    """The deployment does not work, or will not, until an operator acts."""
    WARNING = "warning"
    """It works, but with a limit or a risk."""
    UNKNOWN = "unknown"
    """The check could not be made, for example because a server does not answer."""
    OK = "ok"
    NOT_APPLICABLE = "not applicable"
    """This configuration does not need it, or another check has the reason."""


_NOT_CHECKED = "not checked"
_COUNTABLE = (Outcome.PROBLEM, Outcome.WARNING)
_ORDER = {outcome: position for position, outcome in enumerate(Outcome)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    outcome: Outcome
    found: str
    remedy: str = ""
    """What to do; empty if there is nothing to do."""
    checkable: bool = True
    """False: the check was not made, and may well apply."""


def ok(found: str) -> Finding:
    """Nothing to do."""
    return Finding(Outcome.OK, found)


def not_applicable(why: str) -> Finding:
    """The check was not made, and need not be."""
    return Finding(Outcome.NOT_APPLICABLE, why)


def not_checked(why: str) -> Finding:
    """The check could not be made, and another check has the reason. For programs it is `not applicable`."""
    return Finding(Outcome.NOT_APPLICABLE, why, checkable=False)


def problem(found: str, remedy: str) -> Finding:
    """The deployment needs a repair."""
    return Finding(Outcome.PROBLEM, found, remedy)


def warning(found: str, remedy: str) -> Finding:
    """The deployment has a limit or a risk."""
    return Finding(Outcome.WARNING, found, remedy)


def unknown(found: str, remedy: str) -> Finding:
    """The check could not be made."""
    return Finding(Outcome.UNKNOWN, found, remedy)


@dataclass(frozen=True, slots=True)
class Result:
    """One check and what it found."""

    name: str
    finding: Finding


def combined(findings: Sequence[Finding]) -> Finding:
    """One finding for several parts of one check: the most urgent ones, or all if nothing is to do."""
    assert findings, "a check has at least one part"
    outcome = min((one.outcome for one in findings), key=_ORDER.__getitem__)
    chosen = [one for one in findings if one.outcome is outcome]
    return Finding(
        outcome,
        "; ".join(dict.fromkeys(one.found for one in chosen)),
        "; ".join(dict.fromkeys(one.remedy for one in chosen if one.remedy)),
    )


def finding_of(checked: Checked, remedies: Mapping[str, str], remedy: str, *, brief: bool = False) -> Finding:
    """The finding on one system of `archiver config check --connect`.

    `remedies` are by the name of its check; `remedy` is for the others. `brief`: only the first message if
    nothing is wrong.
    """
    verdict = checked.verdict
    if verdict is CheckStatus.FINE:
        messages = [item.message for item in checked.findings]
        return ok(excerpt("; ".join(messages[: 1 if brief else MESSAGES_MAX]), MESSAGE_MAX))
    wrong = [item for item in checked.findings if item.verdict is verdict]
    messages = [
        # What is wrong with it would read as "it is reachable".
        item.message if item.check == "reachable" else f"{item.check}: {item.message}"
        for item in wrong[:MESSAGES_MAX]
    ]
    if len(wrong) > MESSAGES_MAX:
        messages.append(f"and {len(wrong) - MESSAGES_MAX} more")
    return Finding(
        Outcome.PROBLEM if verdict is CheckStatus.WRONG else Outcome.UNKNOWN,
        excerpt("; ".join(messages), MESSAGE_MAX),
        remedies.get(wrong[0].check, remedy),
    )


def exit_code(results: Iterable[Result]) -> int:
    """A problem comes before what is unknown; a warning needs no action."""
    outcomes = {result.finding.outcome for result in results}
    if Outcome.PROBLEM in outcomes:
        return WRONG
    return UNKNOWN if Outcome.UNKNOWN in outcomes else FINE


def document(config: str | None, cluster: str | None, results: Sequence[Result]) -> dict[str, Any]:
    """The output with `--output json`; checks are in the order in which they were requested."""
    counts = Counter(result.finding.outcome for result in results)
    return {
        "config": config,
        "cluster": cluster,
        "outcomes": {str(outcome): counts[outcome] for outcome in Outcome},
        "checks": [
            {
                "name": result.name,
                "outcome": str(result.finding.outcome),
                "found": result.finding.found,
                "remedy": result.finding.remedy or None,
            }
            for result in results
        ],
    }


def lines(results: Sequence[Result]) -> Iterator[str]:
    """The text: what needs attention with its remedy, then one line for each check that is fine."""
    by_outcome: dict[Outcome, list[Result]] = {outcome: [] for outcome in Outcome}
    for result in results:
        by_outcome[result.finding.outcome].append(result)
    for outcome in (Outcome.PROBLEM, Outcome.WARNING, Outcome.UNKNOWN):
        for result in by_outcome[outcome]:
            yield f"{outcome}: {result.name}: {_indented(result.finding.found)}"
            if result.finding.remedy:
                yield f"    remedy: {_indented(result.finding.remedy)}"
    fine = by_outcome[Outcome.OK]
    width = max((len(result.name) for result in fine), default=0)
    if fine:
        yield "ok:"
    for result in fine:
        yield f"    {result.name:<{width}}  {_indented(result.finding.found)}"
    missed = by_outcome[Outcome.NOT_APPLICABLE]
    by_outcome[Outcome.NOT_APPLICABLE] = [result for result in missed if result.finding.checkable]
    not_made = [result for result in missed if not result.finding.checkable]
    yield from _by_reason(Outcome.NOT_APPLICABLE, by_outcome[Outcome.NOT_APPLICABLE])
    yield from _by_reason(_NOT_CHECKED, not_made)
    counts = [
        counted(len(found), outcome, f"{outcome}s" if outcome in _COUNTABLE else outcome)
        for outcome, found in by_outcome.items()
        if found or outcome is Outcome.PROBLEM
    ]
    yield ", ".join(counts + [f"{len(not_made)} {_NOT_CHECKED}"] * bool(not_made))


def _by_reason(what: str, results: Iterable[Result]) -> Iterator[str]:
    """One line for each reason."""
    names: dict[str, list[str]] = {}
    for result in results:
        names.setdefault(result.finding.found, []).append(result.name)
    for why, of_why in names.items():
        yield f"{what}: {', '.join(of_why)}: {why}"


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n    ")
