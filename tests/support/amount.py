"""How much of the long tests a run plays: a share in `make test`, everything in `make test-all`.

`ARCHIVER_TESTS=whole` asks for everything. Tests marked `whole` run only then; no test of a real part carries the mark.
"""

from __future__ import annotations

import os
import time

DAY_S = 86_400
DAY = int(os.environ.setdefault("ARCHIVER_TESTS_DAY", str(int(time.time()) // DAY_S)))
"""The day that chooses the shares. In the environment, so that the processes of a run agree at midnight; set it to
play the shares of another day."""

WHOLE = os.environ.get("ARCHIVER_TESTS") == "whole"
if "ARCHIVER_RIG_SHARE" in os.environ:
    raise RuntimeError("ARCHIVER_RIG_SHARE is gone; set ARCHIVER_TESTS=whole")
