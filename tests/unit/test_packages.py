"""The check for external packages with the project's names, and the lazy public interface."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archiver.runtime.package_check import check_own_packages

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in (*paths, ROOT))}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, env=environ, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )


CHECK = """
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.package_check import check_own_packages
try:
    check_own_packages()
except ConfigInvalid as error:
    print(error)
"""


def test_our_own_packages_are_found() -> None:
    check_own_packages()


@pytest.mark.parametrize("name", ["intake", "reconcile"])
def test_a_foreign_package_is_named_and_not_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('the foreign package was imported')\n")
    done = run(CHECK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        f"the package '{name}' is found at {tmp_path / name}, but the archiver's own is {ROOT / name}"
        in done.stdout
    )
    assert f"pip uninstall {name}" in done.stdout


def test_a_foreign_module_of_one_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "intake.py").write_text("")
    done = run(CHECK, tmp_path)
    assert f"the package 'intake' is found at {tmp_path}, but" in done.stdout


def test_importing_the_package_loads_no_sdk() -> None:
    code = """
import sys
import archiver
archiver.__version__, dir(archiver)
import archiver.config.settings, archiver.spark.java, archiver.runtime.package_check, archiver.runtime.failpoints, archiver.runtime.logging
loaded = {name.split('.')[0] for name in sys.modules}
print(sorted(loaded & {'pyspark', 'pyiceberg', 'pyarrow', 'ptars', 'google', 'pandas', 'numpy', 'sqlite3'}))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_there() -> None:
    code = """
import archiver
from archiver import Reader, Writer
import archiver.api
assert Reader is archiver.api.Reader and Writer is archiver.api.Writer
assert set(archiver.__all__) == {'Reader', 'Writer', '__version__', 'errors'} == set(dir(archiver))
from archiver.errors import RetryLater
assert RetryLater is archiver.errors.RetryLater is archiver.runtime.errors.RetryLater
try:
    archiver.Nothing
except AttributeError as error:
    print(error)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "module 'archiver' has no attribute 'Nothing'"


def test_the_version_is_that_of_the_project() -> None:
    import tomllib

    import archiver

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == archiver.__version__
