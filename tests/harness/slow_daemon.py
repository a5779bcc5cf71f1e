"""A daemon whose object store and log are slow while a file exists.

`python -m tests.harness.slow_daemon FILE HITS serve …` runs the command line of the product with both in the
weather. Each call that waited appends its name to `HITS`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from archiver.__main__ import main as archiver
from tests.harness.fault_plan import SLOW
from tests.harness.weather import Weather, put_around

CHANCE = 0.5
"""Of each call to be slow."""
SLOW_S = 0.5


class SlowWhile(Weather):
    """Slow as long as a file exists. Thread-safe."""

    def __init__(self, file: Path, hits: Path, rng: random.Random) -> None:
        super().__init__((), rng, time.monotonic, lambda _kind, _call: None)
        self._file = file
        self._hits = hits
        self._chances = rng

    def strike(self, call: str, kinds: Sequence[str]) -> str | None:
        if SLOW not in kinds or not self._file.exists() or self._chances.random() >= CHANCE:
            return None
        with self._hits.open("a", encoding="utf-8") as hits:
            hits.write(f"{call}\n")
        time.sleep(SLOW_S)
        return SLOW


def main() -> None:
    """The program."""
    file, hits = Path(sys.argv[1]), Path(sys.argv[2])
    rng = random.Random(str(file))
    put_around(SlowWhile(file, hits, rng), rng)
    # As if the product had been started by itself.
    sys.argv[1:] = sys.argv[3:]
    archiver()


if __name__ == "__main__":
    main()
