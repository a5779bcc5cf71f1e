"""A command on a terminal of its own: what it prints, keys that a user types, and other sizes of the window."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from typing import IO, Self

from tests.support.builders.deployment import Deployment
from tests.support.process.processes import PATIENCE_S, until

CTRL_C, CTRL_D = "\x03", "\x04"
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAUNCH = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)  # so that a typed Ctrl-C becomes a signal
os.execv(sys.executable, [sys.executable, "-m", "archiver", *sys.argv[1:]])
"""


class Terminal:
    """One running command. Its standard streams are the terminal; input or output may be a pipe instead."""

    def __init__(
        self,
        deployment: Deployment,
        *arguments: str,
        columns: int = 100,
        lines: int = 30,
        kind: str = "xterm",
        environ: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, lines)
        self.written = ""
        """Everything that it has printed, with its escape sequences."""
        # The locale of the machine that runs the tests is not part of them.
        variables = {**deployment.environ(), "TERM": kind, "LC_ALL": "C.UTF-8"}
        for name in ("COLUMNS", "LINES", "PYTHONIOENCODING"):
            variables.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *arguments],
            env={**variables, **(environ or {})},
            stdin=slave if stdin is None else stdin,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.wait()
        os.close(self._master)

    def resize(self, columns: int, lines: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._master, keys.encode())

    def text(self) -> str:
        """Everything that it has printed, without escape sequences."""
        return _CODES.sub("", self.written).replace("\r\n", "\n")

    def shows(self, text: str) -> None:
        """Wait until it has printed this."""
        until(f"{text!r} is printed", lambda: text in self.text() or self._process.poll() is not None)
        assert text in self.text(), self.text()

    @property
    def stdin(self) -> IO[bytes]:
        """Its standard input, if that is a pipe."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Its standard output, if that is a pipe."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def _read(self) -> None:
        data = b""
        while True:
            try:
                piece = os.read(self._master, 65536)
            # Linux reports the end of a terminal so.
            except OSError:
                return
            if not piece:
                return
            data += piece
            # A character may be cut off at the end of a piece.
            with contextlib.suppress(UnicodeDecodeError):
                self.written = data.decode()
