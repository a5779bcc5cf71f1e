"""The runbook, which the daemon serves so that a finding leads to its remedy without a network.

The text in the package is a copy of `docs/operations/runbook.md` that `make docs` writes.
"""

from __future__ import annotations

import posixpath
from functools import cache
from importlib.resources import files
from typing import Any, Final

from archiver.status.advice import RUNBOOK
from archiver.web.markdown import sections

COPY: Final = "templates/runbook.txt"
"""Below the package `archiver.web`."""


@cache
def runbook() -> dict[str, Any]:
    """The document: each section with its anchors and its Markdown."""
    text = (files("archiver.web") / COPY).read_text(encoding="utf-8")
    found = sections(text)
    return {
        "title": found[0].heading,
        "source": RUNBOOK,
        "sections": [
            {
                "heading": one.heading,
                "anchor": one.anchor,
                "aliases": list(one.aliases),
                "markdown": one.text,
            }
            for one in found
        ],
    }


def page_of(target: str) -> str:
    """The page in docs/ that a link of the runbook leads to; empty for a link inside of the runbook."""
    path = target.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(RUNBOOK), path)) if path else ""
