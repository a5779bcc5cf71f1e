"""`archiver demo`: the whole pipeline on real data, in a scratch folder; with `--serve`, its daemon with live
flights.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archiver.cli import options
from archiver.cli.audit import CODES
from archiver.cli.options import Output, OutputOption
from archiver.cli.output import print_json, print_line, progress
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import InvalidInput
from archiver.runtime.exit_codes import FINE

if TYPE_CHECKING:
    from archiver.demo.live_run import LiveProgress

DIRECTORY = Path("demo-data")
RATE = 50
RATE_MAX = 1000
"""More would not be a demo: refinement and cleaning have settings for a slow stream."""


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Scratch folder; it replaces an earlier demo there.")
    ] = DIRECTORY,
    output: OutputOption = Output.TEXT,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Keep the demo of the folder, and run its daemon with live flights until Ctrl-C. Without a "
            "demo there, make it first.",
        ),
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            min=1,
            max=RATE_MAX,
            help=f"Live flights a second, {RATE} by default.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        int | None,
        typer.Option("--seconds", min=1, help="End --serve after so many seconds.", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Port of the console on 127.0.0.1; 0 selects a free one. By default 8788, or a free one if "
            "that is in use.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Archive a year of flights into tables, query and audit them.

    With --serve the demo stays and its daemon runs. The flights of the year depart again, now, so that rates,
    lags and tables change on the daemon's page.
    """
    from archiver.demo.settings import SHUTDOWN_S, is_made, locked
    from archiver.spark.java import require_java

    if not serve and any(given is not None for given in (rate, seconds, port)):
        raise InvalidInput("--rate, --seconds and --port need --serve")
    # First: without Java the demo would fail only when Spark starts, after its records were ingested.
    require_java(os.environ)
    command = "archiver demo --serve" if serve else "archiver demo"
    # A killed `demo --serve` leaves its daemon behind for the time of a stop.
    with locked(directory, command, SystemClock(), 2.0 * SHUTDOWN_S):
        if not serve:
            return _make(directory, output, _console(directory))
        if not is_made(directory):
            # With --serve the report is no line of the output for programs.
            code = _make(directory, Output.TEXT if output is Output.TEXT else None, [])
            if code != FINE:
                return code
        _serve(directory, output, RATE if rate is None else rate, seconds, port)
    return FINE


def _make(directory: Path, output: Output | None, console: list[str]) -> int:
    """Run the whole demo and print its report, with the lines of `console`; the exit code."""
    from archiver.config.settings import load_settings
    from archiver.demo.run import run_demo

    report = run_demo(
        directory,
        lambda path: options.application_of(load_settings(path, os.environ)),
        SystemClock(),
        progress,
    )
    if output is Output.TEXT:
        print("\n".join([*report.lines(options.archiver(), options.spark_sql()), *console]))
    elif output is Output.JSON:
        print_json(report.to_json())
    return CODES[report.verdict]


def _console(directory: Path) -> list[str]:
    """The last lines of `archiver demo`."""
    from archiver.demo.settings import PORT

    named = "" if directory == DIRECTORY else f" --dir {shlex.quote(str(directory))}"
    command = f"{options.archiver()} demo --serve{named}"
    # An installed package has no Makefile.
    makefile = Path(__file__).resolve().parents[2] / "Makefile"
    if not named and makefile == Path.cwd() / "Makefile" and makefile.exists():
        command = f"make demo-serve     (or {command})"
    return [
        "",
        "The console, with live flights until Ctrl-C",
        f"  {command}",
        f"  then open http://127.0.0.1:{PORT}/     (if that port is in use: the address that it prints)",
    ]


def _serve(directory: Path, output: Output, rate: int, seconds: int | None, port: int | None) -> None:
    from archiver.daemon.signals import Signals
    from archiver.demo.live_run import LiveOptions, Shown, serve_demo
    from archiver.demo.settings import LIVE_TOPIC, table_name

    def ready(address: str, configuration: Path) -> None:
        if output is Output.JSON:
            print_line({"console": address, "configuration": str(configuration)})
        else:
            print(f"\nConsole: {address}")
            print(f"{rate} flights a second go to the topic {LIVE_TOPIC} (table {table_name(LIVE_TOPIC)})")
            print(f"For other commands: export {options.CONFIG_VARIABLE}={shlex.quote(str(configuration))}")
            print("Ctrl-C ends it")
        sys.stdout.flush()

    def line(made: LiveProgress) -> None:
        if output is Output.JSON:
            print_line(made.to_json())
        else:
            print(made.line())
        sys.stdout.flush()

    with Signals() as signals:
        serve_demo(
            directory,
            LiveOptions(rate, seconds, port),
            options.application_of,
            os.environ,
            SystemClock(),
            # SIGHUP too: it says that the terminal was closed.
            lambda waited_s: bool(signals.wait(waited_s)),
            Shown(ready, line, progress),
        )
