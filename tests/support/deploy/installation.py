"""The project installed as docs/operations/install.md says, below a scratch folder that takes the place of /.

`Installed.block` runs the page's own commands. Where a command needs root or the service's user, it runs as
this user; where it needs a running systemd or a container engine, it is left out (`NOT_RUN`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.deploy.dockerfile import BUILD_STAGE, copied_sources, read_dockerfile
from tests.support.pages import blocks

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = ROOT / "docs" / "operations"
PAGE = OPERATIONS / "install.md"
INSTALL_TIMEOUT_S = 900
COMMAND_TIMEOUT_S = 300
SYSTEMD = "A service under systemd"
PROGRAM, FILES, CHECK, READY, RECORD = range(5)
"""The `sh` blocks of that section, by what they are for."""

NOT_RUN = ("systemctl", "journalctl", "docker")
"""Programs that need a running systemd or a container engine."""

_PLACES = re.compile(r"(?<![\w.])/(?=(?:opt|etc|var/lib)\b)")
_PIP = re.compile(r"PIP_|SSL_|.*_PROXY$|.*_proxy$|LANG|LC_|JAVA_HOME")


@dataclass(frozen=True)
class Installed:
    """What the commands left."""

    root: Path
    """In the place of /."""
    project: Path
    """In the place of the project's folder: what the Dockerfile copies, and `deploy`."""

    @property
    def bin(self) -> Path:
        """Where the commands are."""
        return self.root / "opt/stream-archiver/bin"

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a newcomer: nothing of the tests' own, but for what reaches a package index and
        Java."""
        # Fetched or built once; every file is checked by its hash all the same.
        cache = {"PIP_CACHE_DIR": str(Path.home() / ".cache/pip")}
        kept = cache | {name: value for name, value in os.environ.items() if _PIP.match(name)}
        scratch = self.root / "tmp"
        scratch.mkdir(exist_ok=True)
        return {
            **kept,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            **(more or {}),
        }

    def shell(self, script: str, cwd: Path | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run lines of the page; what they printed."""
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail; umask 022\n{self.here(script)}"],
            cwd=cwd or self.project,
            env=self.environ({"PIP_NO_COMPILE": "1"}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, (
            f"{script}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout

    def here(self, script: str) -> str:
        """A script of the page with other folders, this user, and the tests' Python."""
        script = re.sub(r"\bsudo (?:-u stream-archiver )?", "", script).replace(" -g stream-archiver ", " ")
        script = script.replace(
            "systemd-sysusers ", f"systemd-sysusers --root={shlex.quote(str(self.root))} "
        )
        script = re.sub(r"^python3 ", f"{shlex.quote(sys.executable)} ", script, flags=re.MULTILINE)
        return _PLACES.sub(f"{self.root}/", script)

    def move(self, name: str, more: Mapping[str, str] | None = None) -> Path:
        """Let a file that was put in place name places below this root; `more` is replaced, too."""
        path = self.root / name
        text = _PLACES.sub(f"{self.root}/", path.read_text(encoding="utf-8"))
        for old, new in (more or {}).items():
            assert old in text, f"{name} has no {old}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        return path

    def command(
        self, *arguments: str, cwd: Path, stdin: str = "", environ: Mapping[str, str] | None = None
    ) -> str:
        """The installed command `archiver`; its standard output."""
        return self.program([str(self.bin / "archiver"), *arguments], cwd, stdin, environ)

    def program(
        self, command: Sequence[str], cwd: Path, stdin: str = "", environ: Mapping[str, str] | None = None
    ) -> str:
        """Any program, from an unrelated folder; its standard output."""
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self.environ(environ),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (
            f"{shlex.join(command)}: exit code "
            f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout


def section(heading: str, page: Path = PAGE) -> list[list[str]]:
    """The commands of each `sh` block below a heading of the page, up to the next heading, but for those that
    are only read."""
    source = page.read_text(encoding="utf-8")
    headings = [(match.start(), match[1]) for match in re.finditer(r"^#+ (.+)$", source, re.MULTILINE)]
    found = []
    for block in blocks(page):
        at = sum(len(line) for line in source.splitlines(keepends=True)[: block.line - 1])
        if (
            block.language == "sh"
            and "no-run" not in block.options
            and [name for start, name in headings if start < at][-1] == heading
        ):
            found.append([line for line in block.text.splitlines() if line.strip()])
    return found


def runnable(commands: Sequence[str]) -> list[str]:
    """Those that need neither a running systemd nor a container engine."""
    return [command for command in commands if command.removeprefix("sudo ").split()[0] not in NOT_RUN]


def pins(name: str) -> dict[str, set[str]]:
    """The versions of each package that a lock in `requirements` names."""
    found: dict[str, set[str]] = {}
    for match in re.finditer(
        r"^([a-z0-9.-]+)==(\S+)", (ROOT / "requirements" / name).read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(match[1], set()).add(match[2])
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The program in an environment of its own, built from what the Dockerfile copies and nothing else.

    That takes a minute, so all tests that need it are in one file.
    """
    found = Installed(tmp_path_factory.mktemp("program"), tmp_path_factory.mktemp("project"))
    (found.root / "opt").mkdir()
    for source in copied_sources(read_dockerfile(ROOT / "deploy/Dockerfile"), BUILD_STAGE):
        _copy(source, found.project)
    _copy("deploy", found.project)
    found.shell("\n".join(section(SYSTEMD)[PROGRAM]), timeout_s=INSTALL_TIMEOUT_S)
    yield found
    shutil.rmtree(found.root)  # A gigabyte, which pytest would keep for three runs.


@pytest.fixture
def machine(program: Installed, tmp_path: Path) -> Installed:
    """A machine with the program, its user, its configuration and its unit, but no data yet."""
    found = Installed(tmp_path / "machine", program.project)
    for place in ("opt", "etc", "var/lib/stream-archiver"):
        (found.root / place).mkdir(parents=True)
    (found.root / "opt/stream-archiver").symlink_to(program.root / "opt/stream-archiver")
    found.shell("\n".join(runnable(section(SYSTEMD)[FILES])))
    found.move("etc/stream-archiver/archiver.yaml")
    return found


def _copy(name: str, project: Path) -> None:
    source, target = ROOT / name, project / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
