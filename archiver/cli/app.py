"""The command `archiver`: its subcommands and the one place where errors become messages and exit codes.

A subcommand's module parses, calls and prints; it holds no logic of its own. The application and what it
needs are imported when a command opens it, so that `archiver --help` and `archiver config check` load neither
Spark nor a catalog.
"""

from __future__ import annotations

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
from archiver.cli.exit_codes import FINE, INTERRUPTED, USAGE, exit_code
from archiver.runtime import package_check
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import excerpt, guard_tracebacks
from archiver.runtime.text import printable_text

if TYPE_CHECKING:
    from typer._click.core import Command, Context

COMMANDS = {
    "serve": "Take in records, archive, clean and audit, until SIGTERM or Ctrl-C; SIGHUP reads the "
    "configuration again.",
    "demo": "Take a year of flights from New York all the way into tables, query them, and audit them.",
    "produce": "Send records and wait until each is acknowledged: stored, and in the intake log at its "
    "offset.",
    "consume": "Print committed records in offset order, seamlessly from archives and intake.",
    "archive": "Archive what is due: intake files become Parquet archives and table rows.",
    "reconcile": "Compare object listing, ledger and tables.",
    "clean": "Condemn what nobody needs any more, and delete what was condemned longer ago than "
    "cleanup.grace: what one run condemns, a run another grace later deletes.",
    "audit": "Compare log, ledger and tables.",
    "status": "Where the logs, the leadership and every topic stand.",
    "explain": "Where a record is now, and why it is not further: log, intake file, archive, table.",
    "tables": "Every topic's table, where it is, and how Spark, Trino and DuckDB read it.",
    "query": "Ask the tables with SQL (DuckDB; `pip install 'stream-archiver[query]'`).",
    "topics": "Look at topics, create those of the configuration, and delete what is not wanted any more.",
    "ledger": "Look at the control log, and at control events.",
    "config": "Check, show and describe the configuration.",
    "dlq": "Records that could not be decoded: which, and decode them again once their schema is mended.",
    "schema": "Show which Protobuf field stands in which column, and what a newer schema would do to the "
    "table.",
}
"""The subcommands in the order of the help, each with the first sentence of its own help.

The sentence is repeated here so that `archiver --help` and completion import no subcommand.
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


def _print_version(asked: bool) -> None:
    if asked:
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


for _name, _help in COMMANDS.items():
    _register(_name, _help)


_ERROR_MAX = 64 * 1024
"""Characters of the error that ends a command; the problems of a configuration are many lines."""
_LOOKED = "nothing was changed"
_INTERRUPTED = {
    "produce": "what was acknowledged is safe",
    "archive": "nothing is lost: what the round under way had not finished, the next one does",
    "reconcile": "nothing is half done that the next run does not end",
    "clean": "nothing that is needed was touched: the next run goes on",
    "dlq": "every record is where it was: the next run goes on",
    **dict.fromkeys(
        ("consume", "audit", "status", "explain", "tables", "query", "ledger", "config", "schema"), _LOOKED
    ),
}
"""What is true when Ctrl-C ended a command, by its name."""


def main() -> None:
    """Entry point of the console script."""
    guard_tracebacks()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code."""
    result: object = FINE
    if completion.VARIABLE in os.environ:
        completion.begin()
    try:
        package_check.check_own_packages()
        result = app(args=arguments, prog_name="archiver", standalone_mode=False)
        sys.stdout.flush()  # Here, where a reader that has gone can still be handled.
    except TyperException as usage:
        # A command line that only lacks its command is answered with the help, which is no error message.
        asked_nothing = not arguments or usage.format_message().startswith("Usage:")
        print(
            usage.format_message() if asked_nothing else f"error: {usage.format_message()}", file=sys.stderr
        )
        context = getattr(usage, "ctx", None)
        if not asked_nothing and context is not None:
            print(f"See `{context.command_path} --help`.", file=sys.stderr)
        return USAGE
    except (KeyboardInterrupt, typer.Abort) as stopped:
        # Typer makes an `Abort` of an `EOFError` too: it comes from damaged bytes, and is no Ctrl-C.
        if isinstance(stopped.__cause__, EOFError):
            raise stopped.__cause__ from None
        result = INTERRUPTED
    except (BrokenPipeError, SystemExit) as gone:
        # The reader of our output (head, less) has gone; there is nobody left to tell. Typer makes an exit
        # with code 1 of it.
        if isinstance(gone, SystemExit) and not isinstance(gone.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ArchiverError as error:
        print(printable_text(excerpt(f"error: {error}", _ERROR_MAX)), file=sys.stderr)
        return exit_code(error)
    if result == INTERRUPTED:  # Typer answers Ctrl-C with this code.
        what = _INTERRUPTED.get(next(iter(arguments), ""), "")
        print(f"interrupted; {what}" if what else "interrupted", file=sys.stderr)
    return result if isinstance(result, int) else FINE
