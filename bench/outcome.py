"""How a bench ends: what it found, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tell(document: Mapping[str, Any], output: Path | None) -> None:
    """Print the result with the load of the machine at its end, and write it to `output`, whose folder is made."""
    text = json.dumps({**document, "load_at_end": round(os.getloadavg()[0], 1)}, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
