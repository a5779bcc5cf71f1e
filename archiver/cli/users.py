"""`archiver users`: set the passwords of the users of the Kafka listener, and list and delete users.

Works on the file of the users only; a running daemon reads it again. A password is never an argument, which
other users of the machine could read.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from archiver.cli.options import ConfigOption, Output, OutputOption, settings_of
from archiver.cli.output import print_json, print_table
from archiver.kafka.sasl import ITERATIONS
from archiver.runtime.errors import InvalidInput
from archiver.runtime.exit_codes import FINE
from archiver.runtime.ids import SystemIds

app = typer.Typer(
    help="List, add and delete the users of the Kafka listener.",
    no_args_is_help=True,
)

_Name = Annotated[str, typer.Argument(help="The user's name.", show_default=False)]
_File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The file of the users (default: kafka.users_file of the configuration).",
        show_default=False,
    ),
]
_Iterations = Annotated[
    int,
    typer.Option(
        "--iterations",
        help="How often the password is hashed, from 4096. More make it harder to guess from the file, and "
        "every connection of a client slower.",
    ),
]
# More than any password that is accepted, in bytes.
_LINE_BYTES_MAX = 64 * 1024


@app.command("set")
def set_password(
    name: _Name, config: ConfigOption = None, file: _File = None, iterations: _Iterations = ITERATIONS
) -> int:
    """Add a user, or change the password of one. At a terminal the command asks for the password; else it is
    the first line of the standard input.
    """
    from archiver.kafka.users import set_user

    path = _users_file(config, file)
    is_new = set_user(path, name, _password(name), iterations, SystemIds())
    print(f"user {name} {'added to' if is_new else 'has a new password in'} {path}")
    return FINE


@app.command("delete")
def delete(name: _Name, config: ConfigOption = None, file: _File = None) -> int:
    """Delete a user. Open connections of the user stay open."""
    from archiver.kafka.users import delete_user

    path = _users_file(config, file)
    delete_user(path, name, SystemIds())
    print(f"user {name} deleted from {path}")
    return FINE


@app.command("list")
def list_users(config: ConfigOption = None, file: _File = None, output: OutputOption = Output.TEXT) -> int:
    """List the names of the users. Fails if a daemon could not use the file."""
    from archiver.kafka.users import read_users

    path = _users_file(config, file)
    names = read_users(path).names
    if output is Output.JSON:
        print_json({"file": str(path), "users": names})
    else:
        print_table(str(path), ("user",), [(name,) for name in names])
    return FINE


def _users_file(config: Path | None, file: Path | None) -> Path:
    """The file of the option, for which no configuration is needed, or that of the configuration."""
    if file is not None:
        return file
    kafka = settings_of(config).kafka
    if kafka is None or kafka.users_file is None:
        raise InvalidInput("the configuration has no kafka.users_file; add it, or name a file with --file")
    return kafka.users_file


def _password(name: str) -> str:
    """The password from the terminal, asked for twice, or from the standard input."""
    if sys.stdin.isatty():
        try:
            password, again = getpass.getpass(f"password of {name!r}: "), getpass.getpass("again: ")
        except EOFError:
            raise InvalidInput("no password was given; nothing was changed") from None
        if again != password:
            raise InvalidInput("the two passwords differ; nothing was changed")
        return password
    data = sys.stdin.buffer.readline(_LINE_BYTES_MAX)
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # Not chained: the error contains the password.
        raise InvalidInput("the password is not UTF-8 text") from None
