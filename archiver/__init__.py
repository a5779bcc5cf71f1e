"""The public API: `from archiver import Writer, Reader`.

Both are imported when they are first asked for (PEP 562), so that importing the package, or one of its inner modules, loads no SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archiver.api import Reader, Writer

__version__ = "0.1.0"

__all__ = ["Reader", "Writer", "__version__"]


def __getattr__(name: str) -> object:
    if name not in ("Reader", "Writer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("archiver.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
