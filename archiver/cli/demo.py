"""`archiver demo`: the whole pipeline on real data, in a scratch folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from archiver.cli import options
from archiver.cli.audit import CODES
from archiver.cli.options import Output, OutputOption
from archiver.cli.output import print_json, progress
from archiver.runtime.clock import SystemClock


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Scratch folder; it replaces an earlier demo there.")
    ] = Path("demo-data"),
    output: OutputOption = Output.TEXT,
) -> int:
    """Archive a year of flights from New York into tables, query the tables, and audit them."""
    from archiver.config.settings import load_settings
    from archiver.demo.run import run_demo
    from archiver.spark.java import require_java

    # First: without Java the demo would fail only when Spark starts, after its records were ingested.
    require_java(os.environ)
    report = run_demo(
        directory,
        lambda path: options.application_of(load_settings(path, os.environ)),
        SystemClock(),
        progress,
    )
    if output is Output.JSON:
        print_json(report.to_json())
    else:
        print("\n".join(report.lines(options.archiver(), options.spark_sql())))
    return CODES[report.verdict]
