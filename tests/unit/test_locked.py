"""Installed packages are locked: each in one version, by the digest of its bytes, in every description of an
installation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from archiver.catalog import engines
from tests.support.catalog import rest_catalog
from tests.support.kafka import kafka_server
from tests.support.objects import s3_server
from tests.support.schema import real_registry
from tests.support.servers import maven

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
_PINNED = re.compile(r"[a-z0-9][a-z0-9._-]*(?:\[[a-z0-9,_-]+\])?==[A-Za-z0-9.!+_-]+(?: ; [^\\]+)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_INSTALL = re.compile(r"pip install\b[^\n]*")
_EXACT = re.compile(r"[0-9][A-Za-z0-9.+-]*")
INSTALLERS = [
    "Makefile",
    "deploy/Dockerfile",
    "docs/operations/install.md",
    "README.md",
    "CONTRIBUTING.md",
    "docs/quickstart.md",
]


def requirements(text: str) -> list[list[str]]:
    """Each requirement of a lock: its own line, then its options."""
    joined = text.replace("\\\n", "\n    ")
    found: list[list[str]] = []
    for line in joined.splitlines():
        part = line.strip()
        if not part or part.startswith("#"):
            continue
        if line.startswith(" "):
            found[-1].append(part)
        else:
            found.append([part])
    return found


def loose(text: str) -> list[str]:
    """Requirements that are not pinned, or whose bytes could be others."""
    return [
        one[0]
        for one in requirements(text)
        if not _PINNED.fullmatch(one[0].strip())
        or len(one) < 2
        or not all(_HASH.fullmatch(option) for option in one[1:])
    ]


def unchecked(text: str) -> list[str]:
    """Calls of pip that accept unverified bytes: without a digest, and not from local files."""
    local = re.compile(r"--no-index\b|--no-deps --editable \.|pip install --upgrade pip\b")
    return [
        line for line in _INSTALL.findall(text) if "--require-hashes" not in line and not local.search(line)
    ]


def test_the_locks_are_seen() -> None:
    assert {path.name for path in LOCKS} == {"audit.lock", "build.lock", "dev.lock", "runtime.lock"}
    assert [
        len(requirements(path.read_text())) > least
        for path, least in zip(LOCKS, (10, 2, 80, 40), strict=True)
    ] == [True] * 4


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_requirement_is_pinned_and_has_its_digests(path: Path) -> None:
    assert loose(path.read_text()) == []


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_no_lock_says_where_packages_come_from(path: Path) -> None:
    """A second index or an address would be a second source of packages with the same name."""
    assert (
        re.findall(
            r"(?m)^\s*(?:-i|--index-url|--extra-index-url|-f|--find-links|--trusted-host)\b.*| @ \S+",
            path.read_text(),
        )
        == []
    )


@pytest.mark.parametrize(
    "text",
    ["a>=1 \\\n    --hash=sha256:" + "0" * 64, "a==1", "a==1 \\\n    --hash=md5:" + "0" * 32, "a==1 ; x"],
)
def test_what_is_loose_is_found(text: str) -> None:
    assert loose(text) != []


@pytest.mark.parametrize("name", INSTALLERS)
def test_every_installation_is_by_digest(name: str) -> None:
    text = (ROOT / name).read_text()
    assert unchecked(text) == []
    if name in INSTALLERS[:3]:
        assert "--require-hashes" in text


def test_an_unchecked_installation_is_found() -> None:
    assert unchecked("RUN pip install pyarrow\n") == ["pip install pyarrow"]


def test_the_audit_asks_of_every_lock_and_reports_what_it_cannot_decide() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\naudit-dependencies:")[2].partition("\n\n")[0]
    (asked,) = re.findall(r"for lock in ([a-z ]+);", recipe)
    assert {f"{name}.lock" for name in asked.split()} == {path.name for path in LOCKS}
    assert "--strict" in recipe
    assert "|| exit 1" in recipe


def test_packages_of_java_have_one_version() -> None:
    """This includes packages that users let Spark fetch. The repository is responsible for their digests: Ivy
    compares them."""
    coordinates = {
        *engines.SPARK_PACKAGES,
        engines.SQLITE_PACKAGE,
        engines.AWS_PACKAGE,
        *kafka_server.PACKAGES,
    }
    coordinates |= {
        *rest_catalog.PACKAGES,
        *rest_catalog.AWS_PACKAGES,
        real_registry.ARCHIVE,
        s3_server.PACKAGE,
    }
    parsed = [maven._parsed(one) for one in coordinates]
    assert len(parsed) >= 8
    assert [one for one in parsed if not _EXACT.fullmatch(one.version) or "SNAPSHOT" in one.version] == []
