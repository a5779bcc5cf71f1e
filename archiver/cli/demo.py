"""`archiver demo`: the main job on real data, in a scratch folder."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from archiver.assemble import open_application
from archiver.cli.audit import CODES
from archiver.cli.options import Output, OutputOption
from archiver.cli.output import print_json, progress
from archiver.clock import SystemClock
from archiver.settings import load_settings


def demo(
    directory: Annotated[Path, typer.Option("--dir", help="Scratch folder; an earlier demo in it is replaced.")] = Path("demo-data"),
    output: OutputOption = Output.TEXT,
) -> int:
    """Take a year of flights from New York all the way into tables, query them, and audit them."""
    from archiver.demo.run import run_demo
    from archiver.java import require_java

    require_java(os.environ)
    report = run_demo(directory, lambda path: open_application(load_settings(path, os.environ), os.environ), SystemClock(), progress)
    if output is Output.JSON:
        print_json(report.to_json())
    else:
        print("\n".join(report.lines(_folder())))
    return CODES[report.verdict]


def _folder() -> str:
    """What stands before a command that is not on the PATH: the folder this one was started from."""
    started = Path(sys.argv[0])
    on_path = shutil.which(started.name)
    if started.name != "archiver" or (on_path is not None and Path(on_path).samefile(started)):
        return ""
    return f"{os.path.relpath(started.parent)}/"
