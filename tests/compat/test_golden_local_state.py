"""The local files of a daemon that this version froze: later versions read them, or give them another format.

A file that is not read costs a chart or a line of the page, and nothing else. Still no version may take one for
something that it is not.
"""

from __future__ import annotations

from pathlib import Path

from archiver.status import chart_file, command_result

GOLDEN = Path(__file__).parent / "golden_local_state"
NOW_US = 1_767_323_105_000_000
CLUSTER = "0123456789abcdef0123456789abcdef"


def test_charts() -> None:
    data = (GOLDEN / "metadata.db.charts").read_bytes()
    found = chart_file.decode(data, NOW_US, CLUSTER)
    assert (found.ago_s, found.span_s, found.known_s) == (60.0, 21600.0, 90.0)
    orders = found.topics["orders"]
    assert orders.steps_ago == 0
    assert {name: values[-3:].tolist() for name, values in orders.values.items()} == {
        "seconds": [1.5, 2.5, 3.5],
        "records": [10.0, 20.0, 30_000_000_001.0],
        "records_per_s": [0.5, 100.0, 0.25],
        "bytes_per_s": [512.0, 1024.0, 0.0],
    }
    assert orders.values["seconds"][0] != orders.values["seconds"][0], "NaN: it was not known"
    assert list(found.topics) == ["orders", "clicks"]
    assert found.topics["clicks"].steps_ago == 7


def test_results_of_commands() -> None:
    data = (GOLDEN / "metadata.db.audit-result").read_bytes()
    audit = command_result.decode(data, "audit", NOW_US, CLUSTER)
    assert (audit.by, audit.outcome, audit.line) == (
        "archive-1:4711",
        "wrong",
        "invalid: 3 partitions, 17 rows",
    )
    assert audit.document == {"verdict": "invalid", "counts": {"valid": 2, "invalid": 1, "unknown": 0}}
    data = (GOLDEN / "metadata.db.reconcile-result").read_bytes()
    found = command_result.decode(data, "reconcile", NOW_US, CLUSTER)
    (finding,) = found.document["findings"]
    assert (finding["id"], finding["topic"], finding["partition"], finding["fixed"]) == (
        "dangling-reference",
        "orders",
        2,
        False,
    )
    assert found.document["findings_left"] == 0
