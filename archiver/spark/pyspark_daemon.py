"""What Spark starts as the parent of its Python workers, in place of `pyspark.daemon`: they are forked with
everything imported.

Spark's own imports next to nothing, so that each new worker imports Arrow, pandas and this package again, and
it ends after a minute without work. It also imports PySpark from an archive, which keeps no bytecode, and has
Python look at its paths anew before each task: up to Python 3.11 that reads the directory of every archive on
the path once more, the jar of Spark's core among them. Together more than the work of a small round (decision
0048).

Must not start a thread, and opens nothing: what is open here would be shared by all workers.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import sys
from pathlib import Path
from zipimport import zipimporter

_NEEDED = (
    "archiver.refine.demultiplexer",
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "ptars",
)
"""What workers import for any task of ours."""
_ARCHIVE = (".zip", ".jar")


def run() -> None:
    """Import what workers need, then be `pyspark.daemon` until Spark ends it."""
    _prefer_unpacked()
    for name in _NEEDED:
        # What is missing is for a worker to say: Spark hands its words to the driver.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _forget_archives()
    daemon = importlib.import_module("pyspark.daemon")
    gc.freeze()
    daemon.manager()


def _prefer_unpacked() -> None:
    """Take from the path the archives that an installed PySpark brought: all that Python can import of them
    is unpacked beside them.
    """
    whole = list(sys.path)
    sys.path[:] = [entry for entry in whole if not entry.endswith(_ARCHIVE)]
    found = importlib.util.find_spec("pyspark")
    brought: list[str] = []
    if found is not None and found.origin is not None and importlib.util.find_spec("py4j") is not None:
        home = Path(found.origin).resolve().parent
        brought = [
            entry
            for entry in whole
            if entry.endswith(_ARCHIVE) and Path(entry).resolve().is_relative_to(home)
        ]
    sys.path[:] = [entry for entry in whole if entry not in brought]


def _forget_archives() -> None:
    """Leave no archive among what Python looks at anew before each task; one that is needed is opened again
    by the directory kept of it.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    run()
