"""Breaking the code on purpose: a mutant is a small change of the text, applied to a copy of the packages.

Promises never to touch the checkout, and to fail loudly if the text that a mutant replaces is not there
exactly once.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("archiver", "intake", "reconcile", "tests", "docs", "pyproject.toml")
FETCHED = ROOT / ".cache"
"""The real servers that tests run: not copied, and fetched once for all."""


@dataclass(frozen=True)
class Mutant:
    """One way to break the code, and who should notice."""

    name: str
    path: str
    """Of the file, from the root of the project."""
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """Tests that should notice, as pytest takes them."""
    simulated: bool = True
    """The simulation should notice."""
    profile: str = ""
    """Under this kind of trouble alone: it notices sooner."""
    rig: str = "intake"
    """Which simulation."""
    judges: tuple[str, ...] = ()
    """The invariants that are to fail there, each in some seed, in addition to the tests; none: any, or one
    of the tests."""


class TextGone(Exception):
    """A mutant does not fit the code any more."""


_LEXEME = re.compile(r"""\"(?:[^"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|\w+|\S""")


def _pattern(code: str) -> re.Pattern[str]:
    """Matches `code` however it is laid out: any white space, and a comma before a closing bracket."""
    parts = [(r",?\s*" if lexeme in ")]}" else "") + re.escape(lexeme) for lexeme in _LEXEME.findall(code)]
    body = code.strip()
    before, _, after = code.partition(body)
    return re.compile(
        (re.escape(before) if before else r"(?<!\w)" * body[0].isidentifier())
        + r"\s*".join(parts)
        + (r"[ \t]*" + re.escape(after) if after else "")
    )


def broken_text(mutant: Mutant, root: Path = ROOT) -> str:
    """The file's text with the mutation; `TextGone` if the code to replace is not there exactly once."""
    text = (root / mutant.path).read_text(encoding="utf-8")
    found = list(_pattern(mutant.old).finditer(text))
    count = len(found)
    if count != 1:
        raise TextGone(
            f"mutant {mutant.name!r}: its text is {count} times in {mutant.path}; adapt it in "
            "tests/mutants/mutants.py"
        )
    (match,) = found
    return text[: match.start()] + mutant.new + text[match.end() :]


def copy_packages(target: Path) -> None:
    """Everything that tests and simulation need, with compiled files, so that a run begins quickly."""
    target.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target / name, ignore=shutil.ignore_patterns("histories", "golden_deployment")
            )
        else:
            shutil.copy2(ROOT / name, target / name)
    if FETCHED.is_dir():
        (target / FETCHED.name).symlink_to(FETCHED)


@contextmanager
def broken(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The copy is broken inside, and whole again behind it."""
    path = copy / mutant.path
    whole = path.read_text(encoding="utf-8")
    text = broken_text(mutant, copy)
    path.unlink()  # a new file, so that no compiled one passes for it
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink()
        path.write_text(whole, encoding="utf-8")
