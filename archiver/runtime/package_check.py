"""Checks that `intake` and `reconcile` are the archiver's own packages.

PyPI has another `intake`; the first one on the import path wins. The check never imports the package, because
an external one could do anything at import.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from archiver.runtime.errors import ConfigInvalid

OWN = ("intake", "reconcile")
"""Top-level packages that are installed together with `archiver`."""


def check_own_packages() -> None:
    """Raise `ConfigInvalid` if `intake` or `reconcile` is not next to `archiver`."""
    # Resolved, because an editable installation may reach the packages through links.
    home = Path(__file__).resolve().parents[2]
    for name in OWN:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ConfigInvalid(
                f"the package {name!r} is missing next to {home / 'archiver'}; install stream-archiver again"
            )
        # None for a namespace package: a folder of that name without `__init__.py`.
        found = Path(spec.origin).resolve().parent if spec.origin else None
        if found != home / name:
            raise ConfigInvalid(
                f"the package {name!r} is found at "
                f"{found or list(spec.submodule_search_locations or ())}, but the archiver's own is "
                f"{home / name}; there is another project of that name: uninstall it (pip uninstall "
                f"{name}), install stream-archiver "
                "again, or take the other folder out of PYTHONPATH"
            )
