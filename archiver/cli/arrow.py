"""Keeps Arrow from importing pandas into a command, which takes a seventh of its start and is never used."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_PANDAS = "pandas"


class _NotYet(MetaPathFinder):
    """While it stands among the finders, there is no pandas."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == _PANDAS:
            raise ModuleNotFoundError("Arrow shall do without it", name=fullname)


def put_off_pandas() -> None:
    """Let Arrow look for pandas now and find none.

    It looks once, when the first array is made, to know whether what it is given may be a series. Where a
    data frame is asked for (`to_pandas`) it looks again, and Spark imports pandas by itself.
    """
    if _PANDAS in sys.modules:
        return
    import pyarrow as pa

    absent = _NotYet()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)
