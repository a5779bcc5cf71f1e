"""How many inputs a fuzz target is given: few where every change is tested, as many as one likes by hand.

`ARCHIVER_FUZZ_EXAMPLES=100000 .venv/bin/python -m pytest tests/fuzz` runs all targets for long. Targets of
one kind share this setting.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = 60
"""For each target, in CI."""
VARIABLE = "ARCHIVER_FUZZ_EXAMPLES"


def fuzzing(share: float = 1.0) -> Callable[[Any], Any]:
    """The settings of a target; `share` is below 1 where one input takes long."""
    examples = int(os.environ.get(VARIABLE, EXAMPLES))
    return settings(
        max_examples=max(1, round(examples * share)), deadline=None, suppress_health_check=list(HealthCheck)
    )
