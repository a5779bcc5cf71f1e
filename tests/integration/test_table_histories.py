"""Any history of commits, external changes, retention and cleaning on a real Iceberg table: exactly the
unnamed files are deleted.

Files are always old here, so that no age and no clock protects a file that a rule does not protect.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.runtime.ids import SeededIds
from tests.support.catalog.table_folders import TableFolder

Step = tuple[str, Any]
EXAMPLES = int(os.environ.get("TABLE_HISTORIES", "6"))
"""Number of random histories; each takes about a second."""
POINTS = [
    f"{name}.{when}={action}"
    for name in (
        "start.append",
        "upkeep.append",
        "table.swap",
        "condemn.append",
        "intake.delete",
        "deleted.append",
    )
    for when in ("before", "after")
    for action in ("error", "unknown")
]


def play(folder: TableFolder, step: Step) -> None:
    name, what = step
    match name:
        case "archive":
            folder.roll_forward()
            folder.write(*what)
            folder.commit()
        case "write":
            folder.write(*what)
        case "stray":
            folder.stray(*what)
        case "wait":
            folder.clock.advance(what)
        case "clean":
            folder.clean()
        case "fail":
            folder.clean_failing(what)
        case "lead":
            folder.roll_forward()
            folder.lead_again()
        case "compact" | "expire" | "roll_forward":
            getattr(folder, name)()
        case "roll_back":
            folder.roll_back(what)


place = st.tuples(st.integers(0, 1), st.integers(1, 3))
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("archive"), place),
    st.tuples(st.just("archive"), place),
    st.tuples(st.just("write"), place),
    st.tuples(st.just("stray"), place),
    st.tuples(st.just("wait"), st.sampled_from([60, 3601, 3 * 3600, 7 * 3600])),
    st.tuples(st.just("clean"), st.none()),
    st.tuples(st.just("clean"), st.none()),
    st.tuples(st.just("fail"), st.sampled_from(POINTS)),
    st.tuples(st.sampled_from(["lead", "compact", "expire", "roll_forward"]), st.none()),
    st.tuples(st.just("roll_back"), st.integers(0, 3)),
)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A file system without a disk to synchronise with."""
OLD = ("wait", 7 * 3600)
NEXT = ("wait", 3601)
CLEAN = ("clean", None)


@settings(
    max_examples=EXAMPLES,
    derandomize="TABLE_HISTORIES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@example([("archive", (0, 2)), ("archive", (0, 2)), OLD, CLEAN, NEXT, CLEAN, NEXT, CLEAN])
@example(
    [
        ("archive", (0, 2)),
        ("archive", (1, 2)),
        ("compact", None),
        ("expire", None),
        CLEAN,
        NEXT,
        OLD,
        CLEAN,
        NEXT,
        CLEAN,
    ]
)
@example(
    [
        ("archive", (0, 3)),
        ("stray", (0, 1)),
        ("lead", None),
        ("archive", (0, 3)),
        CLEAN,
        ("roll_back", 0),
        NEXT,
        CLEAN,
    ]
)
@example(
    [
        ("archive", (0, 3)),
        OLD,
        ("fail", "table.swap.after=unknown"),
        ("fail", "upkeep.append.before=error"),
        NEXT,
        CLEAN,
    ]
)
@given(st.lists(steps, max_size=14))
def test_nothing_referenced_ever_goes_and_what_is_unreferenced_does(history: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        uri = f"sqlite:///{path}/catalog.db"
        tables = IcebergTables(
            "local",
            {"type": "sql", "uri": uri, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"},
            SeededIds(7),
        )
        try:
            folder = TableFolder(Path(path), tables)
            for step in history:
                play(folder, step)
                folder.check()
            folder.settle_down()
            folder.check_nothing_is_left()
        finally:
            tables.close()
