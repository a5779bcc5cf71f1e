"""The command starts quickly: it imports a subcommand, Spark, the catalog's library, pandas or Arrow's
functions only on use.

The tests count imported modules instead of seconds, which depend on the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archiver.app.status_document import _oldest_required
from archiver.cli.app import COMMANDS, load_command, run
from tests.support.builders.deployment import Deployment

HEAVY = {"pyspark", "pyiceberg", "pandas", "duckdb"}
HEAVY_FOR_A_NAME = HEAVY | {"numpy", "pyarrow", "google.protobuf", "rich", "sqlite3"}
"""Modules that help, version and completion do not need."""
OWN_MAX = 16
"""Modules of this project that `archiver --help` may import."""
SLOW = HEAVY | {"pyarrow.compute", "sqlalchemy", "requests", "boto3", "apscheduler", "starlette"}
"""Modules that reading both logs does not need."""
HTTP = {"requests", "urllib3", "pyiceberg.catalog.rest", "tenacity"}
"""Modules that a catalog in a database does not need."""
OTHER_WORK = {"archiver.app.maintenance", "archiver.app.archiving", "intake.write", "archiver.schema"}
FILES = {"name": "files", "partitions": 1, "archive": {"kind": "parquet"}}


def loaded_by(arguments: list[str], environ: dict[str, str] | None = None) -> set[str]:
    """The modules that one command line imports."""
    program = (
        "import atexit, sys\nfrom archiver.cli.app import run\n"
        "atexit.register(lambda: print('', *sorted(sys.modules), file=sys.__stderr__))\n"
        f"sys.exit(run({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "archiver.cli.app" in loaded
    return loaded


def completed(words: str, tmp_path: Path, environ: dict[str, str] | None = None) -> tuple[str, set[str]]:
    """The shell's completions of the last of these words, and the modules imported for them."""
    listing = tmp_path / "modules"
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: open({str(listing)!r}, 'w').write(' '.join(sys.modules)))\n"
        "from archiver.cli.app import main\nsys.argv = ['archiver']\nmain()"
    )
    asked = {
        **(environ or os.environ),
        "_ARCHIVER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=asked
    )
    return done.stdout, set(listing.read_text().split())


def own(loaded: set[str]) -> set[str]:
    """The modules of this project among them."""
    return {name for name in loaded if name.partition(".")[0] in ("archiver", "intake", "reconcile")}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_no_subcommand_is_imported_to_name_them(arguments: list[str]) -> None:
    loaded = loaded_by(arguments)
    assert not (HEAVY_FOR_A_NAME | {"pydantic"}) & loaded
    assert len(own(loaded)) <= OWN_MAX, sorted(own(loaded))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_subcommand_needs_no_settings(name: str) -> None:
    loaded = loaded_by([name, "--help"])
    assert not HEAVY_FOR_A_NAME & loaded
    assert "archiver.config.settings" not in loaded


def test_completion_imports_the_subcommand_that_is_typed(tmp_path: Path) -> None:
    offered, loaded = completed("archiver sta", tmp_path)
    assert offered.split() == ["status"]
    assert not HEAVY_FOR_A_NAME & loaded
    assert len(own(loaded)) <= OWN_MAX, sorted(own(loaded))
    offered, loaded = completed("archiver consume --fo", tmp_path)
    assert offered.split() == ["--follow"]
    assert not HEAVY_FOR_A_NAME & loaded
    assert not {"archiver.cli.status", "archiver.config.settings"} & loaded


def test_completion_of_a_topic_reads_text_and_no_settings(tmp_path: Path) -> None:
    environ = Deployment(tmp_path / "d").environ()
    offered, loaded = completed("archiver consume --topic cl", tmp_path, environ)
    assert offered.split() == ["clicks"]
    assert not HEAVY_FOR_A_NAME & loaded
    assert "archiver.config.settings" not in loaded


def test_the_list_of_subcommands_repeats_their_own_help() -> None:
    for name, text in COMMANDS.items():
        own_help = load_command(name).get_short_help_str(1000)
        assert text == own_help, name


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_lists_of_commands_are_not_cut_at_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([name, "--help"] if name else ["--help"]) == 0
    listed = capsys.readouterr().out.partition("\nCommands:\n")[2].splitlines()
    assert [line for line in listed if line.endswith("...")] == []
    # A description that takes two lines would be counted twice.
    named = load_command(name) if name else None
    assert len(listed) == len(COMMANDS if named is None else getattr(named, "commands", ()))


def test_topics_list_imports_no_more_than_both_logs_need(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.produce([{"topic": "clicks", "value": None}])
    loaded = loaded_by(["topics", "list"], deployment.environ())
    assert "intake.log.sequencer" in loaded
    assert not (SLOW | OTHER_WORK) & loaded


def test_status_without_tables_imports_no_catalog(tmp_path: Path) -> None:
    """The oldest required intake file is derived from tables. Without tables, pyiceberg is not needed."""
    deployment = Deployment(tmp_path / "d", overrides={"topics": [FILES], "catalogs": []})
    deployment.produce([{"topic": "files", "value": None}])
    loaded = loaded_by(["status"], deployment.environ())
    assert "reconcile.snapshot.retention_floor" in loaded
    assert not (SLOW | OTHER_WORK) & loaded


def test_status_of_a_catalog_in_a_database_imports_no_http_client(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.produce([{"topic": "clicks", "value": None}])
    loaded = loaded_by(["status"], deployment.environ())
    assert {"pyiceberg.catalog.sql", "sqlalchemy"} <= loaded
    assert not (HTTP | OTHER_WORK | {"pandas", "pyspark", "duckdb"}) & loaded


@pytest.mark.parametrize(("arguments", "collects"), [(["status"], False), (["audit"], True)])
def test_only_brief_commands_run_without_garbage_collection(
    arguments: list[str], collects: bool, tmp_path: Path
) -> None:
    program = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 0, file=sys.__stderr__))\n"
        f"from archiver.cli.app import main\nsys.argv = {['archiver', *arguments]!r}\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=Deployment(tmp_path / "d").environ(),
    )
    assert done.stderr.splitlines()[-1] == f"{collects} True"


def test_status_takes_what_holds_intake_from_the_daemon() -> None:
    """So a command on a daemon's machine opens no catalog."""
    metrics = {"archiver_intake_oldest_required_age_seconds": 7.0, "archiver_intake_pinned_age_seconds": 7.0}
    reported = {"pinned": {"topic": "clicks"}, "metrics": metrics}
    at: Any = None  # reading a table would raise
    assert _oldest_required(at, 0, {**reported, "topics": []}) == reported
    older = {**reported, "metrics": {"archiver_intake_pinned_age_seconds": 7.0}}
    with pytest.raises(AttributeError):  # a daemon of an older version: the tables are read
        _oldest_required(at, 0, older)


@pytest.mark.parametrize(
    "arguments",
    [["config", "schema"]],
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
from archiver.runtime.pandas_later import put_off_pandas
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
