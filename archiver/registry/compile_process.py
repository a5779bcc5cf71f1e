"""Main program of the compiler process: `python -I -S compile_process.py PACKAGES MEMORY SECONDS OUTPUT
ARGUMENT…`.

It sets the limits of its process (bytes of address space, CPU seconds, bytes of a file), then runs protoc. It
imports no module of this project, and none that the environment or a folder could inject.
"""

from __future__ import annotations

import resource
import sys


def main(arguments: list[str]) -> int:
    """Compile; the exit code is protoc's."""
    packages, memory, seconds, output, *rest = arguments
    limits = (
        # A crash must not fill the disk.
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds)),
        (resource.RLIMIT_FSIZE, int(output)),
        (resource.RLIMIT_AS, int(memory)),
    )
    for limit, value in limits:
        # The hard limit too, so that the process cannot raise it again.
        resource.setrlimit(limit, (value, value))
    # At the end, so that no package can replace a module of the standard library.
    sys.path.append(packages)
    # After the limits, which then cover the import too.
    from grpc_tools import protoc

    return int(protoc.main(["protoc", *rest, f"-I{packages}/grpc_tools/_proto"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
