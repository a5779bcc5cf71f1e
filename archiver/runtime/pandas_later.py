"""Puts off the import of pandas, which Arrow does with its first array.

Few processes need pandas, and its import takes half a second of CPU.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_PANDAS = "pandas"


class _HidesPandas(MetaPathFinder):
    """Import finder that reports pandas as not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == _PANDAS:
            # The error that Arrow expects where pandas is not installed.
            raise ModuleNotFoundError("pandas is hidden from Arrow", name=fullname)


def put_off_pandas() -> None:
    """Make Arrow's first check for pandas fail.

    Arrow checks once, when it creates the first array, whether its input can be a pandas series. `to_pandas`
    checks again, and Spark imports pandas itself, so both still work.
    """
    if _PANDAS in sys.modules:
        return
    import pyarrow as pa

    absent = _HidesPandas()
    sys.meta_path.insert(0, absent)
    try:
        # Any array: the first one makes Arrow check.
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)
