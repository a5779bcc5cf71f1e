"""How a bench ends: what it found, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tell(document: Mapping[str, Any], output: Path | None) -> None:
    """Print the result, and write it to `output`, whose folder is made."""
    text = json.dumps(document, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
