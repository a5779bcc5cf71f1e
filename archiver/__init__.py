"""The public API: `from archiver import Writer, Reader, errors`.

Writer and Reader are imported on first use (PEP 562), so that importing the package, or an inner module,
loads no SDK.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from archiver.runtime import errors

if TYPE_CHECKING:
    from archiver.api import Reader, Writer

__version__ = "0.1.0"

# The former place of the errors, for one release: `from archiver.errors import RetryLater`.
sys.modules["archiver.errors"] = errors

__all__ = ["Reader", "Writer", "__version__", "errors"]


def __getattr__(name: str) -> object:
    if name not in ("Reader", "Writer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("archiver.api"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
