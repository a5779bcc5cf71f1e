"""Main program of the compiler process: `python -I -S compile_process.py PACKAGES MEMORY SECONDS OUTPUT
ARGUMENT…`.

It sets the limits of its process (bytes of address space, CPU seconds, bytes of a file), then runs protoc. It
imports no module of this project, and none that the environment or a folder could inject: `PACKAGES` is the
only folder added to the path.
"""

from __future__ import annotations

import resource
import sys


def main(arguments: list[str]) -> int:
    """Compile; the exit code is protoc's."""
    packages, memory, seconds, output, *rest = arguments
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds)),
        (resource.RLIMIT_FSIZE, int(output)),
        (resource.RLIMIT_AS, int(memory)),
    )
    for limit, value in limits:
        resource.setrlimit(limit, (value, value))
    sys.path.append(packages)
    from grpc_tools import protoc

    return int(protoc.main(["protoc", *rest, f"-I{packages}/grpc_tools/_proto"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
