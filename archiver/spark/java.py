"""Finds the Java that Spark needs, and says what to install if there is none.

The only place that starts `java`, except for Spark itself. Answers within `timeout_s`, with a message that an
operator can follow. Installs and changes nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archiver.runtime.errors import Halt
from archiver.runtime.redaction import excerpt

SUPPORTED = (17, 21)
"""Major versions that Spark 4.1 supports."""

TESTED = (17,)
"""Major versions that the tests ran on."""

INSTALL = """install a Java runtime, version 17 or 21, for example:
  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless
  Fedora, RHEL:    sudo dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@17
or, if one is installed already, set JAVA_HOME to its folder"""

# Possessive quantifiers, so that no output makes the search slow.
_VERSION = re.compile(r'version "(?P<first>\d++)(?:\.(?P<second>\d++))?[^"]*+"')


class JavaUnfit(Halt):
    """There is no Java that Spark can run on."""

    def __init__(self, found: str, remedy: str = INSTALL) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found
        """What was found, without the remedy."""


@dataclass(frozen=True, slots=True)
class JavaFound:
    """A Java that Spark can run on."""

    executable: Path
    major: int
    version: str
    """The first line of `java -version`."""

    @property
    def tested(self) -> bool:
        """Whether the tests ran on this major version."""
        return self.major in TESTED


def require_java(environ: Mapping[str, str], timeout_s: float = 20.0) -> JavaFound:
    """The Java that Spark will start: `JAVA_HOME/bin/java` if that variable is set, else `java` in `PATH`.

    Raises `JavaUnfit` with what to install if it is missing, does not answer within `timeout_s`, or has an
    unsupported version.
    """
    executable = _find(environ)
    answer = _ask(executable, environ, timeout_s)
    match = _VERSION.search(answer)
    if match is None:
        raise JavaUnfit(f"{executable} -version does not tell a version but {excerpt(answer)!r}")
    # Java 8 and older call themselves 1.8.
    major = int(match["second"] or 0) if match["first"] == "1" else int(match["first"])
    # Lines before it may be notes about `JAVA_TOOL_OPTIONS`.
    line = next(line for line in answer.splitlines() if match[0] in line)
    if major not in SUPPORTED:
        raise JavaUnfit(f"{executable} is Java {major} ({line.strip()}), but Spark needs Java 17 or 21")
    return JavaFound(executable=executable, major=major, version=line.strip())


def _find(environ: Mapping[str, str]) -> Path:
    """Searches in the same order as Spark's launcher."""
    home = environ.get("JAVA_HOME", "")
    if home:
        named = Path(home) / "bin" / "java"
        if shutil.which(str(named)) is None:
            raise JavaUnfit(
                f"JAVA_HOME is {home}, but there is no program {named}",
                f"correct or unset JAVA_HOME, or {INSTALL}",
            )
        return named
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise JavaUnfit("no java in PATH and JAVA_HOME is not set: Spark needs Java 17 or 21")
    return Path(found)


def _ask(executable: Path, environ: Mapping[str, str], timeout_s: float) -> str:
    """The output of `java -version`; it prints to standard error."""
    try:
        done = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            check=False,
            text=True,
            # A JVM prints in the encoding of its locale.
            errors="replace",
            timeout=timeout_s,
            env=dict(environ),
            # A program that is not Java may wait for input.
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise JavaUnfit(f"{executable} -version did not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise JavaUnfit(f"{executable} cannot be started ({error})") from error
    said = f"{done.stderr}\n{done.stdout}".strip()
    if done.returncode != 0:
        # macOS has a stub named `java` even if no Java is installed.
        raise JavaUnfit(f"{executable} -version failed with exit code {done.returncode} ({excerpt(said)!r})")
    return said
