"""Says whether this Python can run the project; exit code 3 and what to do if not. Must itself run on any
Python 3.
"""

import sys

OLDEST = (3, 11)


def main() -> int:
    """Print what is wrong, if anything; the exit code."""
    found = sys.version_info[:3]
    if found[:2] >= OLDEST:
        return 0
    sys.stderr.write(
        "error: {} is Python {}.{}.{}, but Python 3.11 or newer is needed; install one and name it, "
        "for example: make setup PYTHON=python3.12\n".format(sys.executable, *found)
    )
    return 3


if __name__ == "__main__":
    sys.exit(main())
