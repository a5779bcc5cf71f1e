"""Prints and stores a bench's result as JSON, and reads the result of an earlier run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def reported_before(output: Path | None, parts: Sequence[str]) -> dict[str, Any]:
    """Return these parts of an existing result file, so that a run of some parts keeps the others."""
    if output is None or not output.exists():
        return {}
    document = json.loads(output.read_text(encoding="utf-8"))
    return {part: document[part] for part in parts if part in document}


def tell(document: Mapping[str, Any], output: Path | None) -> None:
    """Print the result with the machine's load at the end, and write it to `output`; creates the
    folder.
    """
    text = json.dumps({**document, "load_at_end": round(os.getloadavg()[0], 1)}, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
