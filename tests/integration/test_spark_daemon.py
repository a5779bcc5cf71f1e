"""The parent of Spark's Python workers: what it imports once, and what is not read again before each task."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
ARCHIVES = [
    str(path)
    for path in (*(HOME / "python" / "lib").glob("*.zip"), *(HOME / "jars").glob("spark-core_*.jar"))
]
PATHS = """
import json, sys, zipimport
from archiver.spark import pyspark_daemon as spark_daemon
before = list(sys.path)
spark_daemon._prefer_unpacked()
import pyspark
spark_daemon._forget_archives()
kept = [entry for entry in sys.path if entry in ARCHIVES]
cached = [path for path, one in sys.path_importer_cache.items() if isinstance(one, zipimport.zipimporter)]
others = [entry for entry in before if entry not in ARCHIVES]
print(json.dumps([kept, cached, pyspark.__file__, [entry for entry in sys.path if entry not in kept] == others]))
"""


def _state(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The state of a worker before it has run any code of ours."""
    import os
    import sys
    import zipimport

    imported = [name for name in ("archiver.refine.demultiplexer", "pandas", "ptars") if name in sys.modules]
    archives = [
        path for path, one in sys.path_importer_cache.items() if isinstance(one, zipimport.zipimporter)
    ]
    state = {
        "imported": imported,
        "archives": archives,
        "pyspark": sys.modules["pyspark"].__file__,
        "threads_of_parent": len(list(Path(f"/proc/{os.getppid()}/task").iterdir())),
    }
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"state": pa.array([json.dumps(state)] * batch.num_rows)})


@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at threads in /proc")
def test_workers_begin_with_what_they_need(spark_session: SparkSession) -> None:
    for _ in range(2):  # a worker that is used again has been through Spark's check of the paths
        (row,) = spark_session.range(1).repartition(1).mapInArrow(_state, "state string").collect()
        state: dict[str, Any] = json.loads(row["state"])
        assert state["imported"] == ["archiver.refine.demultiplexer", "pandas", "ptars"]
        assert state["archives"] == []
        assert Path(state["pyspark"]) == HOME / "__init__.py"  # with bytecode, and not in an archive
        # Python's own, and one that Arrow's allocator forks with care.
        assert state["threads_of_parent"] <= 2


def paths_with(entries: list[str], *options: str) -> Any:
    root = str(Path(__file__).resolve().parents[2])
    program = f"import sys; ARCHIVES = {entries!r}; sys.path[:0] = [*ARCHIVES, {root!r}]\n{PATHS}"
    done = subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_archives_that_are_unpacked_next_to_it_are_left_out() -> None:
    assert len(ARCHIVES) == 3
    kept, cached, found, in_order = paths_with(ARCHIVES)
    assert (kept, cached, in_order) == ([], [], True)
    assert Path(found) == HOME / "__init__.py"


def test_archives_of_another_spark_come_first(tmp_path: Path) -> None:
    """For a cluster's machine that has a Spark of its own and a second one installed."""
    archive = tmp_path / "lib" / "pyspark.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
    kept, cached, found, in_order = paths_with([str(archive)])
    assert (kept, cached, in_order) == ([str(archive)], [], True)
    assert Path(found) == archive / "pyspark" / "__init__.py"


def test_archives_stay_where_nothing_else_is_installed() -> None:
    kept, _, found, _ = paths_with(ARCHIVES, "-S")  # without site-packages
    assert kept == ARCHIVES
    assert "pyspark.zip" in found
