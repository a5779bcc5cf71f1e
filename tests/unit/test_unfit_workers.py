"""What the error of a Spark job shows about the workers: a shortage to wait out, or a fault for the operator
to fix."""

from __future__ import annotations

import pytest

from archiver.spark.worker_checks import shortage, unfit


@pytest.mark.parametrize(
    "said",
    [
        'Caused by: java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
        (
            'Caused by: java.io.IOException: Cannot run program "./environment/bin/python": error=13, '
            "Permission denied"
        ),
        "ModuleNotFoundError: No module named 'archiver'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version",
        "RuntimeError: this worker runs version 9 of stream-archiver, the driver 1: install the same one",
    ],
)
def test_what_does_not_mend_itself(said: str) -> None:
    reported = unfit(RuntimeError(f"Job aborted\n  {said}\n\tat java.base/x"))
    assert reported is not None
    assert said in reported


@pytest.mark.parametrize(
    "said",
    [
        'Cannot run program "python3": error=11, Resource temporarily unavailable',
        'Cannot run program "python3": error=12, Cannot allocate memory',
        'Cannot run program "python3": error=24, Too many open files',
        "MemoryError",
        "pyarrow.lib.ArrowMemoryError: malloc of size 1 failed",
        "Caused by: java.lang.OutOfMemoryError: Java heap space",
        "OSError: [Errno 12] Cannot allocate memory",
        "OSError: [Errno 24] Too many open files: '/site-packages/pandas/__init__.py'",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "urllib3.exceptions.TimeoutError",
        "RuntimeError: can't start new thread",
        "ImportError: libarrow.so: failed to map segment from shared object: Cannot allocate memory",
        "Caused by: java.io.IOException: No space left on device",
    ],
)
def test_a_shortage_goes_by(said: str) -> None:
    error = RuntimeError(f"Job aborted\n  {said}\n\tat java.base/x")
    assert unfit(error) is None
    assert shortage(error) == said


@pytest.mark.parametrize(
    "said",
    ["ValueError: MemoryError is no reason", "OSError: [Errno 13] Permission denied", "raise MemoryError()"],
)
def test_what_is_no_shortage(said: str) -> None:
    assert shortage(RuntimeError(f"Job aborted\n  {said}\n\tat java.base/x")) is None


CHAIN = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    first()
{}

{}

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    second()
{}

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    "between",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_of_a_chain_of_exceptions_the_last_one_counts(between: str) -> None:
    handled = RuntimeError(
        CHAIN.format("TimeoutError: of a service that is asked", between, "ImportError: no module named x")
    )
    assert shortage(handled) is None
    assert unfit(handled) is not None
    short = RuntimeError(CHAIN.format("ImportError: no module named x", between, "MemoryError"))
    assert shortage(short) == "MemoryError"
    thrice = CHAIN.format(
        "MemoryError",
        between,
        f"OSError: [Errno 28] full\n\n{between}\n\n" + CHAIN.format("KeyError", between, "ValueError: x"),
    )
    assert shortage(RuntimeError(thrice)) is None
