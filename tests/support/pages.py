"""Runs the examples of a page of documentation as they stand there.

The blocks of a page are one session, in their order. A block with `title=NAME` behind its language becomes
that file. `sh` blocks run in bash, `python` blocks in the interpreter that runs the tests. A `text` block
says what the block before it prints: `…` stands for anything, also for lines. A block with `no-run` behind
its language is only read.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.amount import BUSY

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
RUN = ("sh", "python")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    line: int
    language: str
    options: tuple[str, ...]
    text: str

    @property
    def title(self) -> str | None:
        return next(
            (option.removeprefix("title=") for option in self.options if option.startswith("title=")), None
        )


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page."""
    source = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(source):
        language, *options = fence["info"].split() or [""]
        found.append(Block(source.count("\n", 0, fence.start()) + 1, language, tuple(options), fence["body"]))
    return found


def script(page: Path, replaced: Mapping[str, str]) -> tuple[str, list[tuple[int, str]]]:
    """A page as one bash script, and what each numbered block must print."""
    lines = ["set -euo pipefail", "trap 'jobs -p | xargs -r kill 2>/dev/null; wait' EXIT"]
    expected: list[tuple[int, str]] = []
    number = -1
    for block in blocks(page):
        text = block.text
        for old, new in replaced.items():
            text = text.replace(old, new)
        if "no-run" in block.options:
            continue
        if block.title is not None:
            lines.append(
                f"mkdir -p \"$(dirname '{block.title}')\"\ncat > '{block.title}' "
                f"<<'END-OF-FILE'\n{text}END-OF-FILE"
            )
        elif block.language in RUN:
            number += 1
            lines.append(f"echo {block.line} > at")
            body = text if block.language == "sh" else f"python - <<'END-OF-PROGRAM'\n{text}END-OF-PROGRAM\n"
            lines.append(f"{{\n{body}}} > out.{number}")
        elif block.language == "text":
            expected.append((number, text))
    return "\n".join(lines) + "\n", expected


def run_page(page: Path, folder: Path, replaced: Mapping[str, str], timeout_s: float) -> None:
    """Run a page in `folder`; raises `AssertionError` that names the line of the block which failed or
    printed something else."""
    text, expected = script(page, replaced)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ARCHIVER_")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ.get('PATH', '')}"
    process = subprocess.Popen(
        ["bash", "-c", text],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=BUSY * timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    at = (folder / "at").read_text().strip() if (folder / "at").exists() else "?"
    assert process.returncode == 0, (
        f"{page.name}, block of line {at}: exit code {process.returncode}\n{errors[-4000:]}"
    )
    for number, wanted in expected:
        printed = (folder / f"out.{number}").read_text(encoding="utf-8")
        assert matches(printed, wanted), (
            f"{page.name}: printed\n{printed}\ninstead of\n{wanted}\n{errors[-2000:]}"
        )


def matches(printed: str, wanted: str) -> bool:
    """Whether this is what the page promises. White space counts once, `…` is anything."""
    parts = [r"\s+".join(re.escape(word) for word in part.split()) for part in wanted.strip().split("…")]
    return (
        re.fullmatch(r"[\s\S]*?".join(rf"\s*{part}\s*" if part else "" for part in parts), printed.strip())
        is not None
    )
