"""Reads a Parquet file as `produce` and the sources do, in a process of its own, and says what that took.

Prints one JSON object: `records` read, `error` or null, `mib`: by how much the peak of resident memory grew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from archiver.runtime.errors import InvalidInput
from intake.inputs import read_inputs
from tests.support.builders.refine_memory import peak_mib

RECORD_BYTES_MAX = 16 << 20


def main(path: str) -> None:
    """Read the file."""
    # What the libraries need once is no part of the answer.
    warm = Path(path).with_name("warm.parquet")
    if warm.exists():
        with warm.open("rb") as source:
            sum(1 for _ in read_inputs(source, "parquet", "t", False, RECORD_BYTES_MAX))
    before, records, error = peak_mib(), 0, None
    with Path(path).open("rb") as source:
        try:
            for _ in read_inputs(source, "parquet", "t", False, RECORD_BYTES_MAX):
                records += 1
        except InvalidInput as refusal:
            error = str(refusal)
    print(json.dumps({"records": records, "error": error, "mib": peak_mib() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
