"""Builds the source archive and the wheel into a folder, by default dist/.

Both are built from a copy of what belongs into them, so that a build leaves nothing in the tree and takes
nothing along that an earlier one left there. Needs the packages of requirements/build.lock, and no network.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("archiver", "intake", "reconcile")
FILES = ("LICENSE", "README.md", "pyproject.toml")
# The folder is remembered, because setuptools replaces the arguments.
_BUILD = (
    "import sys; from setuptools import build_meta; made = sys.argv[1]; build_meta.build_sdist(made); "
    "build_meta.build_wheel(made)"
)


def build(output: Path) -> list[Path]:
    """Put both into `output`, made if missing; their paths. Raises `SystemExit` with what was printed if the
    build fails.
    """
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="archiver-build-") as scratch:
        tree, made = Path(scratch) / "tree", Path(scratch) / "made"
        made.mkdir()
        for name in PACKAGES:
            shutil.copytree(
                ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]")
            )
        for name in FILES:
            shutil.copy(ROOT / name, tree / name)
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, str(made)], cwd=tree, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(
                f"{done.stdout}{done.stderr}\nerror: the build failed with exit code {done.returncode}"
            )
        for earlier in (*output.glob("stream_archiver-*.whl"), *output.glob("stream_archiver-*.tar.gz")):
            earlier.unlink()  # dist/stream_archiver-*.whl must match only the new one.
        return [Path(shutil.move(path, output / path.name)) for path in sorted(made.iterdir())]


def main() -> None:
    """Build, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder (default: dist)")
    for path in build(parser.parse_args().output):
        print(f"{path} ({path.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
