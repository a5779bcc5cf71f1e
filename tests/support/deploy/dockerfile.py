"""A Dockerfile as a list of instructions: enough of its grammar to judge ours, for there is no engine to try
it on."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

BUILD_STAGE = "build"
"""The name of the first stage, which copies from the project."""

_KNOWN = frozenset(
    {
        "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL", "STOPSIGNAL", "USER",
        "VOLUME", "WORKDIR",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One instruction, with its lines joined."""

    stage: str
    """The name of the stage, empty for the last one."""
    name: str
    text: str

    def flags(self) -> dict[str, str]:
        """`--name=value` before the rest."""
        return dict(re.findall(r"--([a-z-]+)=(\S+)", re.match(r"(?:--\S+\s+)*", self.text)[0]))  # type: ignore[index]

    def rest(self) -> str:
        """The text behind the flags."""
        return re.sub(r"^(?:--\S+\s+)*", "", self.text)

    def words(self) -> list[str]:
        """The arguments, whether written as a JSON list or as words."""
        rest = self.rest()
        return [str(word) for word in json.loads(rest)] if rest.startswith("[") else shlex.split(rest)


def read_dockerfile(path: Path) -> list[Instruction]:
    """Every instruction; raises `AssertionError` for what is none."""
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    ]
    stage, found = "", []
    for text in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not text.strip():
            continue
        name, _, rest = text.partition(" ")
        assert name in _KNOWN, f"{name} is no instruction of a Dockerfile"
        if name == "FROM":
            named = re.search(r"\sAS\s+(\w+)$", rest)
            stage = named[1] if named else ""
        found.append(Instruction(stage, name, rest.strip()))
    return found


def copied_sources(instructions: list[Instruction], stage: str) -> list[str]:
    """What a stage copies from the project's folder."""
    copies = [
        one
        for one in instructions
        if one.stage == stage and one.name in ("COPY", "ADD") and "from" not in one.flags()
    ]
    return [source for one in copies for source in one.words()[:-1]]


def of(instructions: list[Instruction], name: str, stage: str = "") -> list[Instruction]:
    """The instructions of that name in a stage."""
    return [one for one in instructions if one.name == name and one.stage == stage]
