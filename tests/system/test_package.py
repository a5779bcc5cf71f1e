"""What is built has every file and no other, and its requirements are those that were tested; `test_installed.py`
installs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.deploy.installation import ROOT, pins

PACKAGES = ("archiver", "intake", "reconcile")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "stream_archiver-0.0.9-py3-none-any.whl").touch()
    command = [sys.executable, "scripts/build_dist.py", "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    assert len(list(folder.iterdir())) == 2, "an earlier wheel is not left to be installed"
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def tree() -> set[str]:
    """Every file of the packages that version control knows or would take."""
    command = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *PACKAGES,
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if listed.returncode == 0:
        return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built: tuple[Path, Path]) -> None:
    found = {name for name in contents(built[0]) if ".dist-info/" not in name}
    assert tree() - found == set(), "name these in [tool.setuptools.package-data] of pyproject.toml"
    assert found - tree() == set()
    for needed in (
        "archiver/py.typed",
        "archiver/proto/intake_log.proto",
        "archiver/demo/flights.proto",
        "intake/py.typed",
    ):
        assert needed in found
    assert "stream_archiver-0.1.0.dist-info/licenses/LICENSE" in contents(built[0])


def test_a_wheel_of_the_source_archive_is_the_same(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, archive = built
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        opened.extractall(tmp_path, filter="data")
    assert not [name for name in names if name.startswith(("tests", "bench"))]
    (folder,) = tmp_path.iterdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "again",
        ".",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=100)
    again = contents(next((folder / "again").glob("*.whl")))
    assert again == contents(wheel)


def test_the_extras_exist_and_fit_what_is_locked(built: tuple[Path, Path]) -> None:
    """Nothing is installed or fetched: the environment of the tests has what both ask for."""
    asked = f"stream-archiver[demo,protos,query] @ {built[0].as_uri()}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-index",
        "--report",
        "-",
        "--quiet",
        asked,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr
    (item,) = json.loads(done.stdout)["install"]
    assert sorted(item["requested_extras"]) == ["demo", "protos", "query"]
    assert {"demo", "protos", "query"} <= set(item["metadata"]["provides_extra"])


def test_what_is_installed_was_tested_in_the_same_versions() -> None:
    runtime, tested = pins("runtime.lock"), pins("dev.lock")
    assert len(runtime) > 20
    assert {name: version for name, version in runtime.items() if tested.get(name) != version} == {}
    assert not {"pytest", "mypy", "hypothesis", "pip"} & set(runtime)


def test_every_dependency_is_in_the_lock() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["protos"], *extras["query"]]
    names = {re.split(r"[\[<>=~! ]", requirement)[0] for requirement in asked}
    assert names - set(pins("runtime.lock")) == set()
