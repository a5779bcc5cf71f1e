"""How to call this installation's commands from the current folder, for lines to paste."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def archiver() -> str:
    """`archiver`, or its path if the shell would find another one or none."""
    started = Path(sys.argv[0])
    if started.name != "archiver" or _is_on_path(started):
        return "archiver"
    return shlex.quote(os.path.relpath(started))


def spark_sql() -> str:
    """`spark-sql` of this environment, with the Python interpreter it needs."""
    found = Path(sys.executable).parent / "spark-sql"
    if not found.exists() or _is_on_path(found):
        return "spark-sql"
    return f"PYSPARK_PYTHON={shlex.quote(sys.executable)} {shlex.quote(str(found))}"


def _is_on_path(command: Path) -> bool:
    found = shutil.which(command.name)
    return found is not None and Path(found).resolve() == command.resolve()
