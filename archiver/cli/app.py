"""The command `archiver`: its subcommands, and the one place that turns errors into messages and exit codes.

A subcommand's module parses options, calls and prints. Its module is imported when the command line names it,
and the modules of the pipeline when a command opens the application: `archiver --help` imports neither.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from archiver import __version__
from archiver.cli import completion
from archiver.runtime import package_check
from archiver.runtime.errors import ArchiverError
from archiver.runtime.exit_codes import FINE, INTERRUPTED, USAGE, exit_code
from archiver.runtime.redaction import excerpt, guard_tracebacks
from archiver.runtime.text import printable_text

if TYPE_CHECKING:
    from typer._click.core import Command, Context

COMMANDS = {
    "serve": "Run the daemon: ingest, archive, clean and audit.",
    "demo": "Archive a year of flights into tables, query and audit them.",
    "produce": "Send records and wait until each is acknowledged.",
    "consume": "Print committed records of a topic in offset order.",
    "archive": "Archive what is due, into Parquet archives and table rows.",
    "reconcile": "Compare object listing, ledger and tables.",
    "clean": "Delete objects that are no longer needed.",
    "audit": "Compare log, ledger and tables.",
    "status": "Show the state of the logs, the leadership and every topic.",
    "watch": "Show the status and rates again and again, until Ctrl-C.",
    "explain": "Show where a record is and why it is not further.",
    "tables": "Show the tables, and how Spark, Trino and DuckDB read them.",
    "query": "Query the tables with SQL, in DuckDB.",
    "topics": "List, create, change and delete topics, and delete records.",
    "groups": "Show consumer groups and their lag, and reset their offsets.",
    "users": "List, add and delete the users of the Kafka listener.",
    "ledger": "Show the control log, and encode and decode control events.",
    "config": "Check, show and describe the configuration.",
    "doctor": "Check the machine, the folders and the services.",
    "dlq": "List records that could not be decoded, and decode them again.",
    "schema": "Show the columns of a schema, and what a newer one changes.",
}
"""The subcommands in the order of the help, each with the first sentence of its own help.

The sentence is repeated here so that `archiver --help` and completion import no subcommand. It fits a line of
80 columns, which the help would otherwise cut.
"""


class _LazyGroup(TyperGroup):
    """Lists the subcommands of `COMMANDS`, and imports the module of one when the command line names it."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command to run, in place of the entry that only has its name and help."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Command:
    """Import the module of a subcommand. Its `app` is a group; else its function of that name is it."""
    module = importlib.import_module(f"archiver.cli.{name}")
    parent = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    parent.callback()(lambda: None)  # Typer makes a group only of an application with a callback.
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name)
    else:
        parent.command(name)(getattr(module, name))
    return get_group(parent).commands[name]


app = typer.Typer(
    name="archiver",
    cls=_LazyGroup,
    help="Turns message streams into Iceberg tables: every offset exactly once, every message bit for bit.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"archiver {__version__}")
        raise typer.Exit


@app.callback()
def _begin(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


def _register(name: str, text: str) -> None:
    app.command(name, help=text)(lambda: None)


# The real commands replace these entries in `resolve_command`.
for _name, _help in COMMANDS.items():
    _register(_name, _help)


def _plain(text: str) -> str:
    """A usage error without the words of the library that validates the values of options."""
    return text.replace(": Value error, ", ": ", 1).replace(": Input should be ", ": it must be ", 1)


_ERROR_MAX = 64 * 1024
"""Characters of the error that ends a command. Problems of a configuration can take many lines."""
_READ_ONLY = "nothing was changed"
_INTERRUPTED = {
    "produce": "acknowledged records are safe",
    "archive": "nothing is lost: the next round completes what this one had not finished",
    "reconcile": "the next run completes what is half done",
    "clean": "nothing that is needed was deleted: the next run continues",
    "dlq": "every record is where it was: the next run continues",
    "groups": "a reset changes all of its offsets or none: see `archiver groups describe`",
    "users": "the file of the users is as it was, or has the whole change",
    **dict.fromkeys(
        (
            "audit",
            "status",
            "explain",
            "tables",
            "query",
            "ledger",
            "config",
            "doctor",
            "schema",
        ),
        _READ_ONLY,
    ),
}
"""Message after Ctrl-C, by the name of the command. Ctrl-C is the usual end of `consume` and `watch`."""
_BRIEF = frozenset({"status", "topics", "tables", "explain", "groups"})
"""Commands that read state once, print it and end."""


def main() -> None:
    """Entry point of the console script."""
    # First, because an error of any import could already show a secret.
    guard_tracebacks()
    # Most of the CPU time of these commands is spent on imports, which leave next to no garbage.
    if sys.argv[1:2] and sys.argv[1] in _BRIEF:
        gc.disable()
    code = run(sys.argv[1:])
    # At its end the interpreter collects the whole heap, which the operating system frees anyway. DuckDB's
    # objects must be freed: otherwise its binding prints a list of leaks.
    if "duckdb" not in sys.modules:
        gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    result: object = FINE
    # Before any import of a command, whose warnings would appear at the prompt.
    if completion.VARIABLE in os.environ:
        completion.begin()
    try:
        # Another package of the same name could run any code at its import.
        package_check.check_own_packages()
        # Not standalone: typer would print its own messages and end the process.
        result = app(args=arguments, prog_name="archiver", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe is still handled below
    except TyperException as usage:
        # Without a command, typer raises an error whose message is the help.
        text = usage.format_message()
        is_help = not arguments or text.startswith("Usage:")
        print(text if is_help else f"error: {_plain(text)}", file=sys.stderr)
        context = getattr(usage, "ctx", None)
        if not is_help and context is not None:
            print(f"See `{context.command_path} --help`.", file=sys.stderr)
        return USAGE
    except (KeyboardInterrupt, typer.Abort) as stopped:
        # Typer turns an `EOFError` into `Abort` too. It comes from damaged bytes, not from Ctrl-C.
        if isinstance(stopped.__cause__, EOFError):
            raise stopped.__cause__ from None
        result = INTERRUPTED
    except (BrokenPipeError, SystemExit) as gone:
        # The reader of the output, such as head or less, has ended, so no message can be printed. Typer turns
        # this error into an exit with code 1.
        if isinstance(gone, SystemExit) and not isinstance(gone.__context__, BrokenPipeError):
            raise
        # Otherwise the interpreter's own flush at the end would fail again, with a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ArchiverError as error:
        print(printable_text(excerpt(f"error: {error}", _ERROR_MAX)), file=sys.stderr)
        return exit_code(error)
    if result == INTERRUPTED:  # typer returns this code after Ctrl-C
        message = _INTERRUPTED.get(next(iter(arguments), ""), "")
        print(f"interrupted; {message}" if message else "interrupted", file=sys.stderr)
    # A command without a result, such as the help, returns None.
    return result if isinstance(result, int) else FINE
