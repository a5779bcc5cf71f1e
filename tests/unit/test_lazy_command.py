"""The command starts quickly: Spark, the catalog's library and pandas are imported when something needs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"pyspark", "pyiceberg", "pandas", "duckdb"}


@pytest.mark.parametrize(
    "arguments", [["config", "schema"], ["--help"], ["archive", "--help"], ["demo", "--help"], ["query", "--help"], ["explain", "--help"]]
)
def test_what_reads_nothing_loads_nothing(arguments: list[str]) -> None:
    program = f"import sys\nfrom archiver.cli.app import run\nrun({arguments!r})\nprint(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.strip("'[], \n") for name in done.stderr.split(",")}
    assert "archiver.cli.app" in loaded
    assert not HEAVY & loaded
