"""Starts a command under the system call filter of a unit, as systemd would: `python under_filter.py WORDS
[WORDS …] -- COMMAND …`.

Each WORDS is the value of one `SystemCallFilter=`. A call that the filter refuses fails with EPERM. Uses
systemd's own list of its groups, and libseccomp, which is there wherever systemd is. Imports nothing of the
tests, so that the command inherits nothing of them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

_ALLOW = 0x7FFF0000
_REFUSE_WITH_EPERM = 0x00050000 | 1
_NO_NEW_PRIVILEGES = 38


def expand(word: str) -> set[str]:
    """The system calls of a group, or the one of that name."""
    if not word.startswith("@"):
        return {word}
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    inner = [line.strip() for line in listed.splitlines()[1:]]
    return set().union(*(expand(one) for one in inner if one and not one.startswith("#")))


def allowed(filters: list[str]) -> set[str]:
    """What is left after every filter, in their order. The first one decides that only what it names is
    allowed."""
    found = expand("@default")
    for words in filters:
        for word in words.removeprefix("~").split():
            found = found - expand(word) if words.startswith("~") else found | expand(word)
    return found


def put_on(calls: set[str]) -> None:
    """Allow this process and its children these calls only."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REFUSE_WITH_EPERM)))
    rules = 0
    for call in sorted(calls):
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0 and library.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0) == 0:
            rules += 1
    assert rules > 100, f"{rules} rules are no filter"
    assert ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert library.seccomp_load(context) == 0


if __name__ == "__main__":
    end = sys.argv.index("--")
    put_on(allowed(sys.argv[1:end]))
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
