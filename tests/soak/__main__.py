"""The soak: `python -m tests.soak --minutes M [--seed N] [--folder F]`, and `--judge FOLDER` judges one
again.

Prints one JSON document on standard output and a table for people on standard error. Exit codes: 0 valid, 1
invalid, 2 unknown, 3 bad usage. However a run ends, nothing that it started is left running; a run that is
not valid keeps its folder.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.soak.soak_report import as_text, report_on
from tests.soak.soak_run import Load, Soak
from tests.soak.stage import SoakScene, free_port

CODES = {"valid": 0, "invalid": 1, "unknown": 2}
USAGE = 3
MINUTES_MIN = 1.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m tests.soak", description="Run a daemon under load, hurt it, read back, judge."
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of load (default: 60); settling and reading come on top"
    )
    parser.add_argument("--seed", type=int, help="of records and acts (default: drawn, and printed)")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where everything is kept (default: a new folder, kept unless the run is valid)",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=Load.pause_s,
        help="seconds between two bursts of a sender; 0: as fast as it goes",
    )
    parser.add_argument("--burst-max", type=int, default=Load.burst_max, help="records of a burst")
    parser.add_argument(
        "--judge", type=Path, metavar="FOLDER", help="run nothing; judge a soak that is there"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.judge is not None:
        if not asked.judge.is_dir():
            parser.error(f"{asked.judge} is not a folder")
        return _judge(asked.judge)
    if asked.minutes < MINUTES_MIN or asked.pause < 0 or asked.burst_max < 1:
        parser.error(f"--minutes must be {MINUTES_MIN:g} or more, --burst-max positive, --pause not negative")
    folder = Path(tempfile.mkdtemp(prefix="soak-")) if asked.folder is None else asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty; a run wants a folder of its own")
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    signal.signal(signal.SIGTERM, _interrupt)
    code = _run(folder, seed, asked.minutes * 60, Load(pause_s=asked.pause, burst_max=asked.burst_max))
    if code == 0 and asked.folder is None:
        shutil.rmtree(folder)
    else:
        _tell(f"everything is in {folder}; judge it again with: python -m tests.soak --judge {folder}")
    return code


def _run(folder: Path, seed: int, seconds: float, load: Load) -> int:
    _tell(f"seed {seed}, folder {folder}")
    scene = SoakScene(folder, folder / "disk", port=free_port())
    try:
        Soak(scene, seed, seconds, load, _tell).run()
    except KeyboardInterrupt:
        _tell("interrupted; nothing is shown by half a run")
        return CODES["unknown"]
    except Exception:  # noqa: BLE001 - a soak that breaks has shown nothing, and must not be taken for a verdict
        traceback.print_exc()
        return CODES["unknown"]
    return _judge(folder)


def _judge(folder: Path) -> int:
    report = report_on(folder)
    text = json.dumps(report.to_json(), indent=2)
    print(text)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    (folder / "report.txt").write_text(as_text(report), encoding="utf-8")
    _tell(as_text(report))
    return CODES[report.verdict]


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
