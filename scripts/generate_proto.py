"""Generates the Python code of every .proto file and the descriptors of the built-in ones.

With --check, says whether the committed files are what would be generated.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILTIN = Path("archiver/registry/builtin_protos")
"""Files that are data and need no Python code: registries know them (its README.md)."""


def generate(target: Path) -> None:
    """Write a `_pb2.py` and a `_pb2.pyi` for each .proto file, and the built-in descriptors, at the same
    place below `target`.
    """
    every = sorted(path.relative_to(ROOT) for path in (ROOT / "archiver").rglob("*.proto"))
    sources = [str(path) for path in every if not path.is_relative_to(BUILTIN)]
    _protoc(ROOT, ["-I.", f"--python_out={target}", f"--pyi_out={target}", *sources])
    (target / BUILTIN).mkdir(parents=True, exist_ok=True)
    names = [path.relative_to(BUILTIN).as_posix() for path in every if path.is_relative_to(BUILTIN)]
    _protoc(ROOT / BUILTIN, ["-I.", f"--descriptor_set_out={target / BUILTIN / 'builtin.binpb'}", *names])


def _protoc(folder: Path, arguments: list[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *arguments], cwd=folder, check=True, timeout=120
    )


def generated(folder: Path) -> dict[str, bytes]:
    """The generated files of a tree, by path."""
    found = [*sorted((folder / "archiver").rglob("*_pb2.py*")), folder / BUILTIN / "builtin.binpb"]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in found
        if path.suffix in (".py", ".pyi", ".binpb") and path.exists()
    }


def main() -> int:
    """Generate or check; the exit code."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted = generated(Path(folder))
    found = generated(ROOT)
    differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if differing:
        print(
            f"error: {', '.join(differing)}: not what the .proto files say; run make proto", file=sys.stderr
        )
        return 1
    print(f"{len(wanted)} generated protobuf files are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
