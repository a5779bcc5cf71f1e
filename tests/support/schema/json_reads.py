"""What Arrow's JSON reader is given."""

from __future__ import annotations

from typing import Any

import pyarrow.json as arrow_json
import pytest


def sizes_of_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each call from now on."""
    read, sizes = arrow_json.read_json, []

    def reading(source: Any, **more: Any) -> Any:
        sizes.append(source.size())
        return read(source, **more)

    monkeypatch.setattr(arrow_json, "read_json", reading)
    return sizes
