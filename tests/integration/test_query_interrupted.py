"""Ctrl-C during `archiver query` ends with exit code 130 and one line, in every phase of it.

`test_query.py` covers the phases that run the query and fetch its rows. Here are those that prepare the
views, made slow by their number of files. Here is also the rule of all phases: no call on the connection runs
in the main thread.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.query import duck
from archiver.query.duck import Limits, QueryTable
from tests.support.builders.deployment import Deployment

SCHEMA = '{"type": "struct", "fields": [{"id": 1, "name": "a", "required": false, "type": "long"}]}'
CHILD = """
import sys
from archiver.app.application import Application
from archiver.cli.app import main
from archiver.query import duck

phase, path = sys.argv[1:3]
table = duck.QueryTable("shop", "orders", {schema!r}, (path,) * 400_000)
Application.query_tables = lambda self, names: ([table], dict())
if phase == "_by_name":
    duck._without_ids = lambda connection, files: set(files)
real = getattr(duck, phase)

def begun(*arguments):
    print("begun", flush=True)
    return real(*arguments)

setattr(duck, phase, begun)
sys.argv = ["archiver", "query", "SELECT count(*) FROM shop.orders", "--threads", "1"]
main()
"""


def without_ids(folder: Path) -> str:
    path = folder / "bare.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    return str(path)


@pytest.mark.parametrize("phase", ["_without_ids", "_by_name"])
def test_ctrl_c_while_views_are_prepared(phase: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(schema=SCHEMA), phase, without_ids(tmp_path)],
        env=deployment.environ(),
        cwd=deployment.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, ""), err
    assert err.startswith("interrupted")
    assert "Traceback" not in err


class Watched:
    """A real connection that notes which thread calls it."""

    def __init__(self, connection: Any, calls: list[tuple[str, str]]) -> None:
        self._connection = connection
        self._calls = calls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        self._calls.append((name, threading.current_thread().name))
        return getattr(self._connection, name)


def test_no_call_on_the_connection_runs_in_the_thread_that_receives_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    real = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda *arguments: Watched(real(*arguments), calls))
    assert duck.table_names("SELECT * FROM shop.orders") == {"shop.orders"}
    with duck.asked(
        "SELECT a FROM shop.orders",
        [QueryTable("shop", "orders", SCHEMA, (without_ids(tmp_path),))],
        Limits(2**28, 1),
    ) as result:
        assert list(result.rows) == [(1,)]
    made = {name for name, thread in calls if thread.startswith("duckdb")}
    assert {"extract_statements", "execute", "sql"} <= made
    assert {name for name, thread in calls if not thread.startswith("duckdb")} <= {"interrupt", "close"}
