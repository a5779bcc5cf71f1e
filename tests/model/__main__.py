"""Search the protocol: `python -m tests.model [scenarios|mutations|walks] [--only NAME,…] [--seconds S]
[--seed N]`.

`scenarios` search every rule within the bounds of each, `mutations` the protocol with rules broken, `walks`
at random and in depth. Prints a line for each and the trace of a violation; exits with 1 if a scenario or
walk found one, or if a mutation that must be caught was not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from tests.model.scenarios import MUTATIONS, SCENARIOS, WALKS
from tests.model.search import Found, explore, walk
from tests.model.switches import Config


def show(name: str, found: Found, note: str = "") -> None:
    """One line, and the trace."""
    extent = "" if found.whole or found.why else " (cut)"
    print(
        f"{name:<28} {found.why or 'holds'}: {found.states:,} states, {found.seconds:.0f} s{extent}{note}",
        flush=True,
    )
    for number, label in enumerate(found.trace, 1):
        print(f"    {number:2} {label}", flush=True)


def scenarios(only: set[str], seconds: float) -> Iterator[bool]:
    """Whether each is as it must be."""
    for name, bounds in SCENARIOS.items():
        if not only or name in only:
            found = explore(Config(**bounds), seconds)
            show(name, found)
            yield found.why is None


def mutations(only: set[str], seconds: float) -> Iterator[bool]:
    """As `scenarios`."""
    for mutation in MUTATIONS:
        if not only or mutation.name in only:
            found = explore(mutation.config(), seconds)
            show(f"without {mutation.name}", found)
            yield (found.why is not None) == mutation.caught


def walks(only: set[str], seconds: float, seed: int) -> Iterator[bool]:
    """As `scenarios`."""
    for name, bounds in WALKS.items():
        if not only or name in only:
            found, count = walk(Config(**bounds), seconds, seed)
            show(name, found, f", {count:,} walks")
            yield found.why is None


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("what", nargs="?", choices=("scenarios", "mutations", "walks"), default="scenarios")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=600, help="at most, for each")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    only = {name for name in asked.only.split(",") if name}
    if asked.what == "scenarios":
        found = scenarios(only, asked.seconds)
    elif asked.what == "mutations":
        found = mutations(only, asked.seconds)
    else:
        found = walks(only, asked.seconds, asked.seed)
    return 0 if all(list(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
