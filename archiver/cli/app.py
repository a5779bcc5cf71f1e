"""The command `archiver`: its subcommands and the one place where errors become messages and exit codes.

A subcommand's module parses, calls and prints; it holds no logic of its own. The application and what it
needs are imported when a command opens it, so that `archiver --help` and `archiver config check` load neither
Spark nor a catalog.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from archiver import __version__
from archiver.cli import (
    archive,
    audit,
    clean,
    completion,
    config,
    consume,
    demo,
    dlq,
    explain,
    ledger,
    produce,
    query,
    reconcile,
    schema,
    serve,
    status,
    tables,
    topics,
)
from archiver.cli.exit_codes import FINE, INTERRUPTED, USAGE, exit_code
from archiver.runtime import package_check
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import excerpt, guard_tracebacks
from archiver.runtime.text import printable_text

app = typer.Typer(
    name="archiver",
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


app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("archive")(archive.archive)
app.command("reconcile")(reconcile.reconcile)
app.command("clean")(clean.clean)
app.command("audit")(audit.audit)
app.command("status")(status.status)
app.command("explain")(explain.explain)
app.command("tables")(tables.tables)
app.command("query")(query.query)
app.add_typer(topics.app, name="topics")
app.add_typer(ledger.app, name="ledger")
app.add_typer(config.app, name="config")
app.add_typer(dlq.app, name="dlq")
app.add_typer(schema.app, name="schema")


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
