"""The parent process of Spark's Python workers, in place of `pyspark.daemon`: workers are forked with
everything imported.

The parent of pyspark imports next to nothing. So each new worker imports Arrow, pandas and this package
again, and a worker ends after a minute without work. It also imports PySpark from an archive, which keeps no
bytecode. And Python rescans its import paths before each task: up to Python 3.11 that reads the directory of
every archive on the path once more, the jar of Spark's core among them. Together that costs more than the
work of a small round (decision 0048).

Must not start a thread, and must not open anything: all workers would share it.
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
"""What workers import for any task of this package."""
_ARCHIVE = (".zip", ".jar")


def run() -> None:
    """Import what workers need, then run `pyspark.daemon` until Spark ends it."""
    # Before the imports, so that they come from folders, which keep bytecode.
    _prefer_unpacked()
    for name in _NEEDED:
        # A worker reports a missing package: Spark passes its error to the driver.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _forget_archives()
    daemon = importlib.import_module("pyspark.daemon")
    # Otherwise the collector writes to the pages of all these objects, and so copies them in every worker.
    gc.freeze()
    daemon.manager()


def _prefer_unpacked() -> None:
    """Remove from the path the archives that come with an installed PySpark: all that Python can import from
    them is unpacked next to them.
    """
    whole = list(sys.path)
    sys.path[:] = [entry for entry in whole if not entry.endswith(_ARCHIVE)]
    # Searched without the archives: only an unpacked PySpark makes them superfluous.
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
    """Drop the importers of archives, which Python would rescan before each task. An archive that is needed
    is opened again by the kept directory.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            # The directory that `zipimport` keeps of the archive stays, so reopening is cheap.
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    run()
