"""What the error of a Spark job says of the workers: waited out, or for somebody to mend."""

from __future__ import annotations

import pytest

from archiver.spark_worker import unfit


@pytest.mark.parametrize(
    "said",
    [
        'Caused by: java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
        'Caused by: java.io.IOException: Cannot run program "./environment/bin/python": error=13, Permission denied',
        "ModuleNotFoundError: No module named 'archiver'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version",
        "RuntimeError: this worker runs version 9 of stream-archiver, the driver 1: install the same one",
    ],
)
def test_what_does_not_mend_itself(said: str) -> None:
    told = unfit(RuntimeError(f"Job aborted\n  {said}\n\tat java.base/x"))
    assert told is not None
    assert said in told


@pytest.mark.parametrize(
    "said",
    [
        'Cannot run program "python3": error=11, Resource temporarily unavailable',
        'Cannot run program "python3": error=12, Cannot allocate memory',
        'Cannot run program "python3": error=24, Too many open files',
        "MemoryError",
    ],
)
def test_a_shortage_goes_by(said: str) -> None:
    assert unfit(RuntimeError(f"Job aborted\n  {said}")) is None
