"""The measurements still run, and count what they say. Never tests how long anything takes.

`make test` plays those whose counts stand on a page that users plan by; `make test-all` plays all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 400
LISTS_OF_A_START_MAX = 10
LEDGER_ENTRIES_OF_A_ROUND = 6
"""The epoch, and the five of a commit."""


def measured(bench: str, tmp_path: Path, *more: str) -> dict[str, Any]:
    output = tmp_path / "results" / "bench.json"
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        f"bench.{bench}",
        "--quick",
        "--output",
        str(output),
        *more,
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == document
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["python"]
    return document


def check_spread(found: dict[str, float]) -> None:
    assert set(found) == {"min", "median", "max"}
    assert 0 < found["min"] <= found["median"] <= found["max"]


def test_log(tmp_path: Path) -> None:
    document = measured("log", tmp_path)
    append = document["append"]
    # Every segment takes some bytes of the entry, and an append is one page of the WAL at least.
    assert append["entry_bytes"] > 10 * document["segments_per_entry"]
    assert append["wal_bytes_per_append"] >= 4096 + 24
    for name in ("log", "frames", "frames_growing", "entry_growing"):
        for what in ("appends_per_second", "p50_ms", "p99_ms"):
            check_spread(append[name][what])
        if name != "log":
            check_spread(append[name]["ratio"])
    cases = document["several_writers"]
    assert [(case["writers"], case["an_append_every_s"]) for case in cases] == [(1, 0), (3, 0), (3, 0.1)]
    for case in cases:
        assert case["appends"] >= case["writers"]
        for what in ("appends_per_second", "ratio_to_first", "p50_ms", "p99_ms", "max_ms"):
            check_spread(case[what])
        assert case["least_share_of_even"]["max"] <= 1 <= case["largest_share_of_even"]["min"]
    # The paced ones cannot append more often than their pace allows.
    assert cases[2]["appends"] <= 3 * (cases[2]["seconds"] / 0.1 + 1)


@pytest.mark.whole
def test_fetch(tmp_path: Path) -> None:
    document = measured("fetch", tmp_path)
    assert list(document["cases"]) == ["nested", "raw"]
    for case in document["cases"].values():
        assert list(case) == ["intake", "archive", "verified"]
        for rates in case.values():
            check_spread(rates)


@pytest.mark.whole
def test_group_offsets(tmp_path: Path) -> None:
    document = measured("group_offsets", tmp_path)
    assert list(document["ways"]) == ["whole", "members", "idle"]
    for name in ("whole", "members"):
        for what in document["ways"][name]:
            check_spread(document["ways"][name][what])
    # An idle consumer adds nothing to the log.
    assert document["ways"]["idle"]["bytes_per_s"]["max"] == 0
    kept = document["kept"]
    for what in ("encode_s", "decode_s", "make_s", "core_share"):
        check_spread(kept[what])
    assert 0 < kept["checkpoint_bytes"] < kept["memory_bytes"]


@pytest.mark.whole
def test_schema(tmp_path: Path) -> None:
    document = measured("schema", tmp_path)
    cases = document["cases"]
    assert [name for name, case in cases.items() if "ratio_to_plain" in case] == ["flat", "nested"]
    assert [name for name, case in cases.items() if "ratio_to_clean" in case] == [
        "one_bad", "unknown_top", "unknown_between", "unknown_nested", "nanoseconds",
    ]  # fmt: skip
    others = []
    for form in ("avro", "json"):
        found = document[form]["cases"]
        assert {name: case["wanted"] for name, case in found.items() if "ratio_to_clean" in case} == {
            f"{form}_narrow": form, f"{form}_flat": form, f"{form}_nested": form, f"{form}_one_bad": "one_bad",
        }  # fmt: skip
        assert [case["keep_their_bytes"] for case in found.values()] == [0] * 6 + [1]
        others += found.values()
    for case in (*cases.values(), *others):
        for what in set(case) - {"records", "raw_bytes_per_record", "keep_their_bytes", "wanted"}:
            check_spread(case[what])
    kept = {name: case["keep_their_bytes"] for name, case in cases.items()}
    # Only what is not in canonical order, what columns do not hold, and what is no message.
    assert kept == {**dict.fromkeys(cases, 0), "one_bad": 1, "unknown_between": 2000, "nanoseconds": 2000}


@pytest.mark.whole
def test_backlog(tmp_path: Path) -> None:
    few, many = measured("backlog", tmp_path)["cases"]
    assert (few["files"], many["files"]) == (3, 12)
    for case in (few, many):
        for what in (
            "folded_bytes",
            "described_bytes",
            "commit_cpu_s",
            "library_cpu_s",
            "ours_cpu_s",
            "ours_by_library",
        ):
            check_spread(case[what])
        assert case["described_bytes"]["min"] > case["folded_bytes"]["max"] > 0, (
            "a description is kept once it was decoded"
        )


@pytest.mark.whole
def test_late_store(tmp_path: Path) -> None:
    document = measured("late_store", tmp_path)
    (topic,) = document["topics"]
    (late,) = topic["cases"]
    for what in ("waiting_s", "ahead_s", "clock_ratio", "cpu_ratio"):
        check_spread(late[what])
    opened_s, created_s = (topic[what] * late["late_ms"] / 1000 for what in ("intake_files", "archives"))
    assert late["waiting_s"]["min"] > opened_s + created_s, "everything was waited for"
    assert late["ahead_s"]["min"] > created_s / document["uploads_max"], (
        "no more than are allowed were under way"
    )


@pytest.mark.whole
def test_edge(tmp_path: Path) -> None:
    document = measured("edge", tmp_path)
    assert list(document["messages"]) == ["small", "flat", "nested"]
    for message in document["messages"].values():
        assert message["value_bytes"] > 0
        for way, records in (("send", 200), ("send_batch", 2000)):
            assert message[way]["records"] == records
            check_spread(message[way]["none"]["us"])
            for rules in ("reject", "coerce"):
                assert set(message[way][rules]) == {"us", "added_us", "ratio"}
                for what in ("us", "ratio"):
                    check_spread(message[way][rules][what])


def test_intake(tmp_path: Path) -> None:
    document = measured("intake", tmp_path)
    cases = document["partitions"]
    assert [case["partitions"] for case in cases] == [10, 100, 1000, 10_000]
    # An entry of 10,000 segments would be over log.entry_bytes_max, so that flush is divided.
    assert [case["files_per_flush"] for case in cases] == [1, 1, 1, 2]
    for case in cases:
        for what in ("mb_per_second", "mb_per_cpu_second", "falls_by", "falls_by_in_cpu"):
            check_spread(case[what])
    files = document["file_bytes"]
    assert (files["segments"], files["records_per_segment"]) == (400, 10)
    for payload in ("random", "half_repeating"):
        assert files[payload]["ratio"] == pytest.approx(
            files[payload]["stored_bytes"] / files[payload]["raw_bytes"], abs=1e-4
        )
    # Bytes do not depend on the machine.
    assert files["random"]["raw_bytes"] == 660_000
    assert 1 < files["random"]["ratio"] < files["wanted_below"] == 1.1
    assert files["reached"] is True
    for case in document["acknowledgement"]:
        assert case["sends"] == 20
        for what in ("p50_ms", "p99_ms", "bare_p50_ms", "bare_p99_ms"):
            check_spread(case[what])
        assert case["p50_ms"]["min"] >= case["delay_max_ms"], (
            "acknowledged before the time to wait for company was over"
        )
        shares = [case[f"share_{part}"]["median"] for part in ("before_upload", "upload", "append", "rest")]
        assert all(share > 0 for share in shares)
        assert sum(shares) == pytest.approx(1, abs=0.01)


@pytest.mark.whole
def test_growth(tmp_path: Path) -> None:
    document = measured("growth", tmp_path)
    assert [table["partitions"] for table in document["tables"]] == [1, 3]
    for table in document["tables"]:
        assert list(table["windows"]) == ["5", "27"]
        for start, window in table["windows"].items():
            commits = int(start) + document["window_commits"]
            then = window["then"]
            # Two entries come before the first round: the epoch and the schema; with the rounds, the texts of
            # their five events.
            assert then["ledger_entries"] == 2 + 5 + 5 * commits
            assert then["archives"] == then["manifest_entries"] == commits * table["partitions"]
            assert then["snapshots"] == then["snapshot_log"] == commits
            assert then["metadata_log"] == min(commits, 100)
            # The 25th merges, and is one of those that are merged.
            assert then["manifests"] == commits % 25 + commits // 25
            for cost in (window["window"], window["young"], window["between"]):
                assert cost["commits"] > 0
                # The metadata file is read for the inspection, the swap and the proof, and written once; so
                # are manifest and manifest list.
                assert cost["requests"] >= 6
                assert cost["bytes_read"] > cost["bytes_written"] > 4096
            # No checkpoint is due yet, so a new process reads everything.
            assert window["restart"]["entries"] == window["restart"]["entries_read"] == then["ledger_entries"]
            assert window["audit"]["entries"] == then["archives"], "a verdict of every entry"
            assert window["audit"]["peak_mib"] >= window["audit"]["imported_mib"] > 0
        for name in (
            "archives",
            "commit_cpu_by_young",
            "plan_cpu_by_young",
            "checkpoint_bytes",
            "restart_cpu_s",
            "audit_entries_per_s",
        ):
            assert list(table["curves"][name]["points"]) == ["5", "27"]
        assert table["curves"]["archives"]["last_by_first"] == pytest.approx(30 / 8, abs=1e-3)
        times = {"p50", "cpu_p50", "ledger_cpu_p50", "look_cpu_p50", "plan_cpu_p50"}
        assert (
            set(table["growth"])
            == {"bytes", "requests", "reached", "audit_entries_per_cpu_s", "audit_reached"} | times
        )
    points = document["intake"]["points"]
    assert list(points) == ["1000", "1100"]
    for entries, point in points.items():
        # The first 401 declare the topic and open the producers; each other one has 20 segments.
        assert point["entries"] == point["entries_read"] == int(entries)
        assert point["plan_segments"] == (int(entries) - 401) * document["intake"]["segments_per_entry"]
        assert point["plans"] == document["intake"]["partitions"]


def test_capacity(tmp_path: Path) -> None:
    document = measured("capacity", tmp_path)
    one, many = document["intake"]["1x10"], document["intake"]["20x10"]
    for flush in (one, many):
        assert flush["files"] == 1
        assert flush["file_bytes"] > flush["entry_bytes"] > 16 + 32, "an id and a digest at least"
    assert many["entry_bytes_per_segment"] < one["entry_bytes"]
    ledger = document["ledger"]
    for case in ledger["cases"].values():
        assert case["entries_per_round"] == 5
        assert sum(case["bytes_by_body"].values()) == pytest.approx(case["bytes_per_round"], abs=5)
        reported = ledger["bytes_each_round"] + case["archives"] * ledger["bytes_each_further_archive"]
        assert reported == pytest.approx(case["bytes_per_round"], rel=0.02), (
            "it grows with the archives, by the same each"
        )


@pytest.mark.whole
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_deep_audit(tmp_path: Path) -> None:
    document = measured("deep_audit", tmp_path)
    for what in ("refine_rows_per_s", "fast_audit_s", "deep_with_intake_rows_per_s", "deep_rows_per_s"):
        check_spread(document[what])
    # A ratio is one of two rates of the same run, so its range cannot leave what their ranges allow; rates
    # are given in whole rows.
    for kind in ("deep", "deep_with_intake"):
        ratio, rates, refine = (
            document[f"{kind}_to_refine"],
            document[f"{kind}_rows_per_s"],
            document["refine_rows_per_s"],
        )
        check_spread(ratio)
        assert (rates["min"] - 0.5) / (refine["max"] + 0.5) - 0.01 <= ratio["min"]
        assert ratio["max"] <= (rates["max"] + 0.5) / (refine["min"] - 0.5) + 0.01
    assert set(document["deep_cpu_us_per_row"]) == {"program", "jvm", "workers"}
    steps = document["worker_cpu_us_per_row"]
    assert set(steps) == {"all", "read", "rebuild", "encode", "digest", "look"}
    for step in steps.values():
        check_spread(step)
    assert steps["encode"]["max"] < steps["rebuild"]["max"] < steps["all"]["max"], (
        "ptars is a part of rebuilding, and that of all"
    )


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_mirror(tmp_path: Path) -> None:
    document = measured("mirror", tmp_path)
    for name in ("bare", "mirror"):
        for what in ("core", "wall"):
            check_spread(document[f"{name}_records_per_{what}_second"])
    for what in ("core", "wall"):
        check_spread(document[f"ratio_of_{what}_seconds"])


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_control_topic(tmp_path: Path) -> None:
    document = measured("control_topic", tmp_path)
    assert [case["tables_of_a_round"] for case in document["cases"]] == [1, 20]
    for case in document["cases"]:
        of_a_round = 2 * case["tables_of_a_round"] + 3
        rounds, rest = divmod(case["events"], of_a_round)
        assert (rest, case["waves"]) == (0, 5 * rounds), (
            "each wave has one event of every table, or that of the whole round"
        )
        assert case["bytes_of_an_event"] > 1000, "an event says its schema"
        for who in ("publisher", "bare"):
            for what in ("core", "wall"):
                check_spread(case[f"{who}_events_per_{what}_second"])
        check_spread(case["ratio_of_core_seconds"])
        check_spread(case["ratio_of_wall_seconds"])


@pytest.mark.turns(3)
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_requests(tmp_path: Path) -> None:
    """The counts that docs/operations/s3.md states: they do not depend on the machine, but for LIST, which
    does on the time of the day."""
    document = measured("requests", tmp_path)
    steps = document["steps"]
    assert list(steps["intake_file"].items())[:6] == [
        ("PUT", 1),
        ("POST", 0),
        ("GET", 0),
        ("HEAD", 0),
        ("LIST", 0),
        ("DELETE", 0),
    ]
    assert [steps["start"][kind] for kind in ("PUT", "POST", "HEAD", "DELETE")] == [1, 0, 0, 0]
    assert steps["start"]["LIST"] <= LISTS_OF_A_START_MAX
    # An archive; manifest, manifest list and metadata file in three requests each.
    assert [steps["commit"][kind] for kind in ("PUT", "POST", "DELETE")] == [4, 6, 0]
    assert steps["commit"]["LIST"] <= 3
    assert steps["further_archive"]["PUT"] == 1
    assert steps["further_archive"]["requests"] < 2
    assert max(document["eager_hour"]["per_commit"][kind] for kind in ("HEAD", "GET")) <= 20
    assert steps["idle_minute"]["POST"] == steps["idle_minute"]["DELETE"] == 0, "no table is changed"
    for name in ("bulk_in", "bulk_archived"):
        step = document["bulk"][name]
        assert step["requests"] == sum(
            step[kind] for kind in ("PUT", "POST", "GET", "HEAD", "LIST", "DELETE")
        )
    # Random bytes stay as many, in the intake file and in the archive.
    assert 1 < document["bulk"]["bulk_in"]["in_by_raw"] < 1.2
    assert 1 < document["bulk"]["bulk_archived"]["in_by_raw"] < 1.2


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_limit(tmp_path: Path) -> None:
    (shape,) = measured("limit", tmp_path)["shapes"].values()
    runs = {"default", "tuned", "task", "refine", "refine_few", "whole", "whole_few"}
    for figures in (shape["records_per_core_second"], shape["records_per_second"]):
        assert set(figures) == runs
        for figure in figures.values():
            check_spread(figure)
    for ratio in ("refine", "refine_few", "refine_tuned", "refine_wall", "task", "whole", "whole_few"):
        check_spread(shape[f"{ratio}_by_libraries"])
    # Each process reads all its files with all options: no process was measured on less.
    assert all(size > 100_000 for size in shape["stored_bytes"].values())
    steps = shape["steps"]
    assert set(steps["default"]) == {"read", "decode", "encode and compare", "write"}
    assert {"read", "decode", "encode", "write", "digest", "everything else"} <= set(steps["task"])


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_etcd_log(tmp_path: Path) -> None:
    document = measured("etcd_log", tmp_path)
    for name in ("one_member", "three_members"):
        case = document[name]
        for contender in ("log", "bare", "sqlite"):
            for what in ("appends_per_second", "p50_ms", "p99_ms"):
                check_spread(case[contender][what])
            if contender != "log":
                check_spread(case[contender]["ratio"])
        for what in ("seen_p50_ms", "seen_p99_ms", "poll_p50_ms"):
            check_spread(case[what])
    taken = document["bytes"]
    for half in ("first_half", "second_half"):
        # An entry is kept whole, in pages that are rarely full; until its history is compacted every tail is
        # kept as well.
        assert taken["entry_bytes"] < taken["bytes_kept_per_entry"][half] < 3 * taken["entry_bytes"]
        assert taken["bytes_kept_per_entry"][half] < taken["bytes_per_append"][half]
    entries = document["deployment"]
    assert entries["intake_entries_per_round"]["count"] in (
        1,
        2,
    )  # a tick too, where the last one is ten seconds old
    assert entries["control_entries_per_round"]["count"] == LEDGER_ENTRIES_OF_A_ROUND


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_freshness(tmp_path: Path) -> None:
    document = measured("freshness", tmp_path)
    eager = document["profiles"]["eager"]
    assert eager["records"] == eager["batches"] * document["rate"] // document["batches_per_s"] > 0
    # A partition is taken when it has been open for 4 s, so the oldest batch of a snapshot has waited nearly
    # as long.
    assert max(eager["oldest_s"]) > 3.5
    assert (
        eager["visible_s"]["p50"]
        <= eager["visible_s"]["p99"]
        <= eager["visible_s"]["max"]
        == max(eager["oldest_s"])
    )
    assert 0.25 <= eager["poll_s"]["p50"] <= eager["poll_s"]["max"]
    for cores in (eager["cores"], *(document["idle"][which]["cores"] for which in ("many", "one"))):
        assert cores["all"] == pytest.approx(cores["daemon"] + cores["jvm"] + cores["workers"], abs=0.001)
    assert eager["cores"]["jvm"] > 0, "refinement is counted"
    assert document["idle"]["many"]["topics"] == 3
    assert document["idle"]["many"]["cores"]["jvm"] == 0, "nothing was refined"


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_partitions(tmp_path: Path) -> None:
    document = measured("partitions", tmp_path)
    many, requests, one_topic = document["many"], document["requests"], document["one_topic"]
    assert many["commits"]["twice_in_a_round"] == 0
    assert (
        1
        <= many["commits"]["of_a_table"]["min"]
        <= many["commits"]["of_a_table"]["max"]
        <= many["commits"]["rounds"]
    )
    assert many["commits"]["count"] >= many["topics"], "each table has one at least"
    for step in ("plan", "refine", "commit"):
        assert max(one[step] for one in many["round_steps_s"]) > 0, (
            "told to the microsecond: a plan of three topics takes less than a millisecond"
        )
    assert max(age for _, age in many["oldest_s"]) < 60
    for part in ("daemon", "jvm", "workers"):
        assert many["memory"][part]["max_mb"] >= many["memory"][part]["last_mb"] >= 0
    assert requests["requests"] == sum(
        requests[kind] for kind in ("PUT", "POST", "GET", "HEAD", "LIST", "DELETE")
    )
    assert requests["raw_bytes"] > 100 * requests["records"]
    assert requests["PUT"] > requests["topics"], "an archive and table metadata of each"
    assert one_topic["partitions"] == document["one_topic_large"]["partitions"] == [8, 100]
    assert document["one_topic_large"]["records"] == 10 * one_topic["records"]
    for what in (
        "slower_by_cpu",
        "slower_by_the_clock",
        "records_per_core_second_8",
        "records_per_core_second_100",
    ):
        check_spread(one_topic[what])
    check_spread(one_topic["libraries_slower_by_cpu"])


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc for peaks")
def test_memory(tmp_path: Path) -> None:
    document = measured("memory", tmp_path)
    assert list(document["backlogs"]) == ["1MiB", "4MiB"]
    for backlog in document["backlogs"].values():
        peaks = backlog["peak_mib"]
        assert set(peaks) == {"driver", "jvm", "parent of workers", "worker"}, "each kind of process was seen"
        # Python with Arrow takes so much before it has done anything; shared pages count once in the sum.
        assert 50 < peaks["worker"] < sum(peaks.values())
        assert (
            max(peaks.values()) < backlog["together_mib"] < sum(peaks.values()) * document["machine"]["cores"]
        )
        assert backlog["archives"] == 1


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_compaction_of_small_archives(tmp_path: Path) -> None:
    document = measured("compaction", tmp_path)
    assert document["before"]["archives"] > 5 * document["after"]["archives"]
    assert document["after"]["archives"] == 4, "one of each partition"
    assert document["after"]["bytes"] < document["before"]["bytes"]
    for engine in ("duckdb", "spark"):
        query = document["queries"][engine]
        assert min(query["before_seconds"] + query["after_seconds"]) > 0
        assert query["faster"] > 0
    assert document["records_per_cpu_second"] > 0


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_workers(tmp_path: Path) -> None:
    document = measured("workers", tmp_path)
    for case in document["cases"].values():
        assert list(case["workers"]) == ["1", "3"]
        for one in case["workers"].values():
            check_spread(one["produce_mb_per_core_second"])
            assert one["records_verified"] == 2 * document["batches"] * document["batch_records"]
    assert document["limits"]["entries_per_second"] == 32 / 0.2
    check_spread(document["limits"]["follow_ms"])
