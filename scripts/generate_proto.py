"""Generates the Python code of every .proto file; with --check, says whether the committed code is what would be generated."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generate(target: Path) -> None:
    """Write a `_pb2.py` and a `_pb2.pyi` for each .proto file, at the same place below `target`."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "archiver").rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={target}", f"--pyi_out={target}", *sources]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)


def generated(folder: Path) -> dict[str, bytes]:
    """The generated files of a tree, by path."""
    found = sorted((folder / "archiver").rglob("*_pb2.py*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if path.suffix in (".py", ".pyi")}


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
        print(f"error: {', '.join(differing)}: not what the .proto files say; run make proto", file=sys.stderr)
        return 1
    print(f"{len(wanted)} generated protobuf files are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
