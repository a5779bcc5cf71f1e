"""Says whether this machine has a Java that Spark can run on; exit code 3 and what to install if not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from archiver.spark.java import TESTED, JavaUnfit, require_java


def main() -> int:
    """Print the verdict; the exit code."""
    try:
        found = require_java(os.environ)
    except JavaUnfit as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    note = (
        ""
        if found.tested
        else f" (supported by Spark; this project's tests ran on {', '.join(map(str, TESTED))})"
    )
    print(f"Java {found.major}: {found.executable}{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
