"""The verdict of a soak and the report on it, from what its folder holds.

`invalid`: the judge of the outside harness found a broken promise, `audit` says invalid, a series grows or is
too high, or the product misbehaved (`wrong`). `unknown`: something of that could not be measured or decided.
`valid`: everything was checked, and was well. What is wrong stays wrong, even if other things could not be
measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.harness.errands import ERRANDS
from tests.harness.flatness import Finding, Rule, judge_series
from tests.harness.history import History
from tests.harness.judging import Verdict, judge
from tests.harness.loading import SUPERVISOR, ledger_names, load, read_ledger
from tests.harness.scene import HEAP_MEGABYTES
from tests.harness.watching import HEAPS, SAMPLES, SCRAPES

LONG_S = 900.0
"""What comes and goes with cleaning and checkpoints repeats every few minutes: less than this shows no
trend."""
CLEANED_S = 300.0
"""Until then nothing was old enough to be deleted: twice the deletion delay and twice the interval of
cleaning, and some."""

PLATEAU_S = 100.0
"""The window of a run of five minutes, less some: in its second half the daemon's memory is at its plateau."""

RULES: tuple[tuple[str, str, Rule], ...] = (
    # Memory: a round's buffers come and go by a few MB. What the daemon keeps by design (its journal,
    # positions of files) is far less. It comes to its plateau of about 300 MB within a minute or, on a busy
    # machine, within two: measured were steps of 0.1, 6 and 12.2 MB. So a window that ends earlier, as that
    # of a run of three minutes, shows no growth: there 16.04 MB were measured. The JVM's stacks and metadata
    # were measured to grow by 14 MB within a minute while its pools fill.
    (SAMPLES, "rss_mb", Rule("daemon memory", "MB", allowance=16.0, ceiling=1000.0, lasts_s=PLATEAU_S)),
    (SAMPLES, "jvm_rss_mb", Rule("JVM memory", "MB", allowance=24.0, ceiling=HEAP_MEGABYTES + 500.0)),
    (SAMPLES, "worker_rss_mb", Rule("Python worker memory", "MB", allowance=16.0, ceiling=700.0)),
    # The heap is touched whole at the start, so a leak inside of it does not show in the process's memory
    # before it ends the JVM.
    (
        HEAPS,
        "heap_mb",
        Rule("JVM live heap", "MB", allowance=6.0, ceiling=HEAP_MEGABYTES * 0.7, lasts_s=600.0, every_s=12.0),
    ),
    # Descriptors and threads: those of requests under way come and go, a handful at a time. Of Spark's pools
    # two have up to 128 threads each, which come with the rounds and go after a minute. A round has four
    # threads of its own in the daemon; where rounds take half of the time, blocks of samples differ by those
    # four.
    (SAMPLES, "fds", Rule("daemon descriptors", "", allowance=6.0, ceiling=300.0)),
    (SAMPLES, "threads", Rule("daemon threads", "", allowance=10.0, ceiling=150.0)),
    (SAMPLES, "jvm_fds", Rule("JVM descriptors", "", allowance=8.0, ceiling=600.0)),
    (
        SAMPLES,
        "jvm_threads",
        Rule("JVM threads", "", allowance=20.0, ceiling=450.0, settles_s=CLEANED_S, lasts_s=600.0),
    ),
    (SAMPLES, "children", Rule("child processes", "", allowance=3.0, ceiling=12.0)),
    (SAMPLES, "workers", Rule("Python workers", "", allowance=2.0, ceiling=8.0)),
    # What is stored: cleaning and checkpoints hold it down, once there is something to clean.
    (
        SAMPLES,
        "metadata_mb",
        Rule("metadata store", "MB", allowance=4.0, ceiling=200.0, settles_s=CLEANED_S, lasts_s=LONG_S),
    ),
    (
        SAMPLES,
        "intake_files",
        Rule("intake files", "", allowance=1500.0, ceiling=20_000.0, settles_s=CLEANED_S, lasts_s=LONG_S),
    ),
)
"""File of samples, field, rule."""
PHASES = ("steady", "rough", "settling")
BAD = {"grows": "invalid", "too high": "invalid", "unmeasured": "unknown"}
WRONG_SHOWN_MAX = 20
STEADY_DAEMON = "daemon-0"
"""The one that runs in the steady phase."""


@dataclass
class Report:
    """The report on a soak."""

    invalid: list[str] = field(default_factory=list)
    """Why it is invalid."""
    unknown: list[str] = field(default_factory=list)
    """Why it cannot be valid."""
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """All together."""
        return "invalid" if self.invalid else "unknown" if self.unknown else "valid"

    def to_json(self) -> dict[str, Any]:
        """The document that the program prints."""
        return {"verdict": self.verdict, "invalid": self.invalid, "unknown": self.unknown, **self.document}


def is_soak(folder: Path) -> bool:
    """Whether the folder has the samples of a soak; any other run is judged by its history alone."""
    return (folder / SAMPLES).exists()


def report_on(folder: Path) -> Report:
    """Everything that the folder says."""
    report = Report()
    run = read_ledger(folder, SUPERVISOR)
    history = load(folder)
    _history(report, history)
    _checks(report, run.events)
    begins = {event["name"]: event["at"] for event in run.events if event["event"] == "phase"}
    report.document["phases"] = {name: round(begins[name], 1) for name in PHASES if name in begins}
    if missing := [name for name in PHASES if name not in begins]:
        report.unknown.append(f"the run did not get to its {' and its '.join(missing)} phase")
    steady_s = (begins["steady"], begins["rough"]) if {"steady", "rough"} <= begins.keys() else None
    if steady_s is not None:
        _series(report, folder, *steady_s)
        _pages(report, folder, *steady_s)
        _commands(report, folder, *steady_s)
        report.document["ways"] = dict(_ways(folder, *steady_s))
    return report


def _history(report: Report, history: History) -> None:
    judgement = judge(history)
    told = judgement.to_json()
    report.document["history"] = told
    if judgement.verdict == "invalid":
        report.invalid += [
            f"{name}: {found['rule']}: broken {found['times']} times"
            for name, found in told["violated"].items()
        ]
    if judgement.verdict == "unknown":
        report.unknown += [
            *judgement.reasons,
            *(f"{name} looks broken, in a history that is not whole" for name in told["violated"]),
        ]


def _checks(report: Report, events: list[dict[str, Any]]) -> None:
    """What the run itself saw, and what `audit` said."""
    wrong = [event["what"] for event in events if event["event"] == "wrong"]
    report.invalid += wrong[:WRONG_SHOWN_MAX]
    audits = [event for event in events if event["event"] == "checked" and event["command"][0] == "audit"]
    report.document["audits"] = [
        {"verdict": event["verdict"], "code": event["code"], "seconds": event["seconds"]} for event in audits
    ]
    if len(audits) < 2:
        report.unknown.append("the audits beside the daemon and after it were not both made")
    for event in audits:
        if event["verdict"] == "invalid":
            report.invalid.append(f"audit says invalid: {event['said']}")
        elif event["verdict"] != "valid":
            report.unknown.append(
                f"audit says {event['verdict']}, exit code {event['code']}: {event['said']}"
            )
    report.document["acts"] = [
        [round(event["at"], 1), event["kind"], event["what"]] for event in events if event["event"] == "fault"
    ]


def _series(report: Report, folder: Path, begin_s: float, end_s: float) -> None:
    findings: list[Finding] = []
    for file, name, rule in RULES:
        lines = [line for line in _lines(folder / file) if line["daemon"] == STEADY_DAEMON]
        finding = judge_series(rule, [(line["at"], line.get(name)) for line in lines], begin_s, end_s)
        findings.append(finding)
        if finding.state in BAD:
            (report.invalid if BAD[finding.state] == "invalid" else report.unknown).append(
                f"{rule.name} {finding.state}: {finding.why}"
            )
    report.document["series"] = [finding.to_json() for finding in findings]


def _pages(report: Report, folder: Path, begin_s: float, end_s: float) -> None:
    """How the pages answered; while nothing is killed each of them must."""
    seconds: dict[str, list[float]] = defaultdict(list)
    bad: dict[str, int] = defaultdict(int)
    lag: dict[str, list[float]] = defaultdict(list)
    for line in _lines(folder / SCRAPES):
        if not begin_s <= line["at"] <= end_s:
            continue
        seconds[line["page"]].append(line["seconds"])
        bad[line["page"]] += line["status"] != 200
        for stage, value in line.get("lag", {}).items():
            lag[stage].append(value)
    report.document["pages"] = {
        page: {"asked": len(took), "bad": bad[page], **_spread(took)} for page, took in seconds.items()
    }
    report.document["lag_seconds"] = {stage: _spread(values) for stage, values in lag.items()}
    report.invalid += [
        f"{page} answered {count} times with something other than 200 in the steady phase"
        for page, count in bad.items()
        if count
    ]
    if not seconds:
        report.unknown.append("no page was asked for in the steady phase")
    if not lag:
        report.unknown.append("/metrics told no lag in seconds")


def _commands(report: Report, folder: Path, begin_s: float, end_s: float) -> None:
    told: dict[str, dict[str, Any]] = {}
    for line in _lines(folder / ERRANDS):
        name = " ".join(line["command"])
        known = told.setdefault(name, {"run": 0, "codes": {}, "seconds": []})
        known["run"] += 1
        known["codes"][str(line["code"])] = known["codes"].get(str(line["code"]), 0) + 1
        known["seconds"].append(line["seconds"])
        if begin_s <= line["at"] and line["at"] + line["seconds"] <= end_s and line["code"] != 0:
            report.invalid.append(
                f"in the steady phase `archiver {name}` ended with {line['code']}: {line['said'][-200:]}"
            )
    report.document["commands"] = {
        name: {**known, "seconds": round(median(known["seconds"]), 2)} for name, known in told.items()
    }
    if not told:
        report.unknown.append("no command was run beside the daemon")


def _ways(folder: Path, begin_s: float, end_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """What came in through each way in the steady phase, and how long it took from handing over to the last
    answer of a burst."""
    records: dict[str, int] = defaultdict(int)
    took: dict[str, list[float]] = defaultdict(list)
    for name in ledger_names(folder):
        sent: dict[str, float] = {}
        for event in read_ledger(folder, name).events:
            if event["event"] not in ("send", "ack") or not begin_s <= event["at"] <= end_s:
                continue
            way = event["sender"].partition("-")[2].partition("/")[0]
            if event["event"] == "send":
                sent[event["sender"]] = event["at"]
                records[way] += len(event["records"]) if "file" in event else 0
            elif event["sender"] in sent:
                records[way] += sum(record[1] == "ok" for record in event["records"])
                took[way].append(event["at"] - sent.pop(event["sender"]))
    for way in sorted(records):
        yield (
            way,
            {
                "records": records[way],
                "per_second": round(records[way] / (end_s - begin_s), 1),
                **_spread(took[way]),
            },
        )


def _spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "max": round(max(values), 3)}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines; the last one may be torn when a run was ended in the middle."""
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def as_text(report: Report) -> str:
    """For people."""
    document = report.document
    lines = [f"verdict: {report.verdict}"]
    lines += [f"  invalid: {reason}" for reason in report.invalid] + [
        f"  unknown: {reason}" for reason in report.unknown
    ]
    counts = document["history"]["counts"]
    lines.append(
        f"records {counts['records']}, read back {counts['consumed']}, rows in tables "
        f"{counts['table_rows']}, files {counts['files']}"
    )
    lines.append(
        f"{'series':22}{'min':>9}{'median':>9}{'max':>9}{'step':>9}{'per day':>11}  "
        f"{'finds per h':>11}  state"
    )
    for found in document.get("series", ()):
        numbers = [
            found[name]
            for name in ("minimum", "median", "maximum", "step", "slope_per_day", "detects_per_hour")
        ]
        low, middle, high, step, slope, finds = (
            "-" if number is None else f"{number:.4g}" for number in numbers
        )
        lines.append(
            f"{found['name']:22}{low:>9}{middle:>9}{high:>9}{step:>9}{slope:>11}  {finds:>11}  "
            f"{found['state']}"
        )
    for title in ("ways", "lag_seconds", "pages", "commands"):
        for name, numbers in document.get(title, {}).items():
            lines.append(f"{title}: {name}: " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
    lines += [f"act: {at:8.1f} s  {kind}: {what}" for at, kind, what in document.get("acts", ())]
    return "\n".join(lines) + "\n"
