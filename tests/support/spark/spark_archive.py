"""An environment for Spark's workers, packed as docs/operations/spark.md says: what the archiver needs, and
no pyspark.

Made of what is installed here, linked instead of downloaded once more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.builders.deployment import ROOT

PACKAGES = ("archiver", "intake", "reconcile")
NOT_FOR_WORKERS = frozenset({"pyspark", "py4j"})
"""Every executor has Spark's own."""


def bare_environment(folder: Path) -> Path:
    """A Python without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    return folder / "bin" / "python"


def copied_packages(folder: Path, version: str | None = None) -> Path:
    """The archiver's packages, of another version if one is given."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if version is not None:
        head = folder / "archiver" / "__init__.py"
        text, changed = re.subn(
            r'__version__ = ".*"', f'__version__ = "{version}"', head.read_text(encoding="utf-8")
        )
        assert changed == 1
        head.write_text(text, encoding="utf-8")
    return folder


def packed_environment(folder: Path) -> Path:
    """A file for `spark.archives`."""
    prefix = folder / "environment"
    bare_environment(prefix)
    site = next(prefix.glob("lib/python*/site-packages"))
    copied_packages(site)
    for found in _runtime():
        for file in found.files or ():
            source, target = Path(str(found.locate_file(file))), site / file
            if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(source, target)
    packed = folder / "environment.tar.gz"
    subprocess.run(
        ["tar", "--create", "--use-compress-program=gzip -1", "--file", packed, "--directory", prefix, "."],
        check=True,
        timeout=300,
    )
    shutil.rmtree(prefix)
    return packed


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)


def _runtime() -> list[Distribution]:
    """What the archiver requires, and what that requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, found = [Requirement(text) for text in project["dependencies"]], dict[str, Distribution]()
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        if name in found or name in NOT_FOR_WORKERS:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of an extra, or of another system
        more = [Requirement(text) for text in found[name].requires or ()]
        waiting += [
            one
            for one in more
            if one.marker is None or one.marker.evaluate({"extra": next(iter(wanted.extras), "")})
        ]
    return list(found.values())
