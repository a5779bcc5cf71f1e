"""How much of the long tests a run plays: a share in `make test`, everything in `make test-all`.

`ARCHIVER_TESTS=whole` asks for everything. Tests marked `whole` run only then; no test of a real part carries the mark.
"""

from __future__ import annotations

import os

WHOLE = os.environ.get("ARCHIVER_TESTS") == "whole"
if "ARCHIVER_RIG_SHARE" in os.environ:
    raise RuntimeError("ARCHIVER_RIG_SHARE is gone; set ARCHIVER_TESTS=whole")
