"""Prints and stores a bench's result as JSON, and reads the result of an earlier run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def reported_before(output: Path | None, parts: Sequence[str]) -> dict[str, Any]:
    """What the file says already, of these parts: a run of some of them leaves the others as they are."""
    if output is None or not output.exists():
        return {}
    document = json.loads(output.read_text(encoding="utf-8"))
    return {part: document[part] for part in parts if part in document}


def tell(document: Mapping[str, Any], output: Path | None) -> None:
    """Print the result with the load of the machine at its end, and write it to `output`, whose folder is
    made.
    """
    text = json.dumps({**document, "load_at_end": round(os.getloadavg()[0], 1)}, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
