"""The command starts quickly: Spark, the catalog's library and pandas are imported when something needs
them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment

HEAVY = {"pyspark", "pyiceberg", "pandas", "duckdb"}


def loaded_by(arguments: list[str], environ: dict[str, str] | None = None) -> set[str]:
    program = (
        f"import sys\nfrom archiver.cli.app import run\nrun({arguments!r})\nprint(sorted(sys.modules), "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    loaded = {name.strip("'[], \n") for name in done.stderr.split(",")}
    assert "archiver.cli.app" in loaded
    return loaded


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", "schema"],
        ["--help"],
        ["archive", "--help"],
        ["demo", "--help"],
        ["query", "--help"],
        ["explain", "--help"],
    ],
)
def test_what_reads_nothing_loads_nothing(arguments: list[str]) -> None:
    assert not HEAVY & loaded_by(arguments)


def test_no_command_needs_data_frames(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.produce([{"topic": "clicks", "value": None}])
    for arguments in (["status"], ["consume", "--topic", "clicks"], ["audit"], ["tables"]):
        loaded = loaded_by(arguments, deployment.environ())
        assert "pyarrow.lib" in loaded
        assert not {"pandas", "pyspark"} & loaded, arguments


def test_data_frames_are_there_for_who_asks() -> None:
    program = """
from archiver.cli.arrow import put_off_pandas
put_off_pandas()
import sys
import pyarrow as pa
made = pa.table({"a": pa.array([1, 2])})
assert "pandas" not in sys.modules
assert made.to_pandas()["a"].sum() == 3
import pandas as pd
assert pa.array(pd.Series([1, 2])).to_pylist() == [1, 2]
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
