"""From a folder to a history: reads what the processes of a run wrote, and notices what is missing.

Must never guess. A line that is torn where no kill can have torn it, a skipped number, and a reading that
ended early are troubles. A history with troubles is never judged valid.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.harness.group_gathering import GatheredGroups
from tests.harness.history import (
    Attempt,
    Fetched,
    History,
    Isolation,
    MirrorReading,
    Row,
    TableReading,
    Transaction,
)

FORMAT = 1
SUPERVISOR = "run"


@dataclass
class Ledger:
    """One process's ledger, its parts put together."""

    name: str
    events: list[dict[str, Any]] = field(default_factory=list)
    torn: bool = False
    """The last line was not finished."""
    troubles: list[str] = field(default_factory=list)


def read_ledger(folder: Path, name: str) -> Ledger:
    """The ledger of that name, as far as it can be read."""
    ledger = Ledger(name)
    parts = sorted(folder.glob(f"{name}.[0-9][0-9][0-9][0-9].jsonl"))
    for number, path in enumerate(parts):
        if path.name != f"{name}.{number:04}.jsonl":
            ledger.troubles.append(f"{name}: part {number} is missing")
            return ledger
        if ledger.torn:
            ledger.troubles.append(f"{path.name} follows a part that ends in the middle of a line")
            return ledger
        for line in path.read_bytes().splitlines(keepends=True):
            event = _parse(line)
            if event is None and not line.endswith(b"\n"):
                ledger.torn = True
            elif event is None or event.get("n") != len(ledger.events):
                ledger.troubles.append(
                    f"{path.name}: line {len(ledger.events)} of the ledger is not readable, or is missing"
                )
                return ledger
            else:
                ledger.events.append(event)
    return ledger


def ledger_names(folder: Path) -> list[str]:
    """Ledgers of workers in the folder, each worker's in the order of its lives."""
    names = {path.name.rsplit(".", 2)[0] for path in folder.glob("worker-*.jsonl")}
    return sorted(names, key=lambda name: (name.rsplit("-", 1)[0], int(name.rsplit("-", 1)[1])))


def load(folder: Path) -> History:
    """The history in that folder; what is wrong with it stands in its `troubles`."""
    run = read_ledger(folder, SUPERVISOR)
    troubles = list(run.troubles)
    if run.torn:
        troubles.append("the ledger of the run itself ends in the middle of a line")
    head = run.events[0] if run.events else {}
    if head.get("event") != "run" or head.get("format") != FORMAT:
        return History(
            troubles=(*troubles, f"{folder.name}: there is no run of format {FORMAT} in this folder")
        )
    workers = [read_ledger(folder, name) for name in ledger_names(folder)]
    oddities: list[str] = []
    troubles += _check_complete(run, workers, oddities)
    gathered = _Gathered()
    for worker in workers:
        for event in worker.events:
            gathered.take(event)
    for event in run.events:
        if event["event"] == "fault":
            gathered.faults[event["kind"]] += 1
    troubles += gathered.troubles
    tables: dict[str, TableReading] = {}
    consumed: dict[str, tuple[Row, ...]] = {}
    upstream: dict[str, tuple[Row, ...]] = {}
    for event in _reads(run):
        what, topic = event["what"], event["topic"]
        if event["error"] is not None:
            troubles.append(f"reading {what} of {topic} failed: {event['error']}")
            continue
        rows = _rows(folder / f"{what}-{topic}.jsonl", event["rows"])
        if rows is None:
            troubles.append(f"{what}-{topic}.jsonl is not what was read: {event['rows']} rows were")
        elif what == "table":
            tables[topic] = TableReading(
                rows, {int(partition): offset for partition, offset in event["watermarks"].items()}
            )
        else:
            (consumed if what == "consume" else upstream)[topic] = rows
    topics: dict[str, Any] = head["topics"]
    tabled = tuple(name for name, topic in topics.items() if topic["table"] is not None)
    mirrored = {name for name, topic in topics.items() if topic.get("mirrored")}
    troubles += [f"topic {name} was not read by consume" for name in topics if name not in consumed]
    if head["rounds"]:
        troubles += [f"the table of topic {name} was not read" for name in tabled if name not in tables]
    mirrors = {
        name: MirrorReading(upstream[name], consumed[name], tables[name])
        for name in sorted(mirrored)
        if name in upstream and name in consumed and name in tables
    }
    troubles += [
        f"mirrored topic {name} was not read on both sides" for name in sorted(mirrored - mirrors.keys())
    ]
    return History(
        seed=head["seed"],
        topics=tuple(name for name in topics if name not in mirrored),
        tabled=tuple(name for name in tabled if name not in mirrored),
        faults_asked=tuple(head["faults"]),
        rounds_asked=head["rounds"],
        attempts=tuple(gathered.attempts.values()),
        transactions=gathered.transactions,
        dropped=frozenset(gathered.dropped),
        faults=dict(gathered.faults),
        settled=any(event["event"] == "settled" for event in run.events),
        consumed={name: rows for name, rows in consumed.items() if name not in mirrored},
        tables={name: table for name, table in tables.items() if name not in mirrored},
        mirrors=mirrors,
        fetched=gathered.readers(),
        groups=gathered.groups.readings(),
        troubles=tuple(dict.fromkeys(troubles)),
        oddities=tuple(oddities),
    )


class _Gathered:
    """What the ledgers of the workers say together."""

    def __init__(self) -> None:
        self.attempts: dict[tuple[str, int, int], Attempt] = {}
        self.transactions: dict[str, Transaction] = {}
        self.dropped: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.fetched: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        self.first_s: dict[str, dict[str, float]] = defaultdict(dict)
        self.isolation: dict[str, Isolation] = {}
        self.ends: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        self.groups = GatheredGroups()
        self.troubles: list[str] = []

    def take(self, event: dict[str, Any]) -> None:
        if "group" in event:
            self.groups.take(event)
            return
        match event["event"]:
            case "send":
                self._send(event)
            case "ack":
                self._acknowledged(event)
            case "tx":
                self._step(event)
            case "dropped":
                self.dropped.add(event["file"])
            case "fault":
                self.faults[event["kind"]] += 1
            case "reader":
                self.isolation[event["reader"]] = event["isolation"]
            case "fetched":
                first_s = self.first_s[event["reader"]]
                for topic, partition, offset, digest in event["records"]:
                    self.fetched[event["reader"]][topic].append(Row(partition, offset, digest, 0, None))
                    first_s.setdefault(digest, event["at"])
            case "end-offset":
                self.ends[event["reader"]][event["topic"], event["partition"]] = event["offset"]

    def readers(self) -> dict[str, Fetched]:
        """What each Kafka reader got."""
        return {
            reader: Fetched(
                {topic: tuple(rows) for topic, rows in topics.items()},
                self.ends[reader],
                self.isolation.get(reader, "committed"),
                self.first_s[reader],
            )
            for reader, topics in self.fetched.items()
        }

    def _send(self, event: dict[str, Any]) -> None:
        producer = event.get("producer")
        sources = event.get("sources") or [None] * len(event["records"])
        for (number, topic, partition, sequence, digest), source in zip(
            event["records"], sources, strict=True
        ):
            self.attempts[event["sender"], number, event["attempt"]] = Attempt(
                sender=event["sender"],
                number=number,
                attempt=event["attempt"],
                topic=topic,
                partition=partition,
                digest=digest,
                sequence=sequence,
                producer=None if producer is None else (producer[0], producer[1]),
                transaction=event.get("tx"),
                file=event.get("file"),
                source=None if source is None else (source[0], source[1], source[2], source[3]),
            )

    def _acknowledged(self, event: dict[str, Any]) -> None:
        for number, outcome, partition, offset, sequence, error in event["records"]:
            key = event["sender"], number, event["attempt"]
            if key not in self.attempts:
                self.troubles.append(f"{key}: acknowledged, but the ledger does not say that it was sent")
                continue
            known = self.attempts[key]
            where = known.partition if partition is None else partition
            counted = known.sequence if sequence is None else sequence
            self.attempts[key] = replace(
                known, outcome=outcome, partition=where, offset=offset, sequence=counted, error=error
            )

    def _step(self, event: dict[str, Any]) -> None:
        name, step = event["tx"], event["step"]
        known = self.transactions.get(name, Transaction(name))
        steps, asked_s, committed_s = known.steps, known.asked_s, known.committed_s
        if step != "begin":
            answered = "outcome" in event
            steps = (*steps[:-1], (step, event["outcome"])) if answered else (*steps, (step, None))
            if step == "commit" and not answered and asked_s is None:
                asked_s = event["at"]
            if (step, event.get("outcome")) == ("commit", "ok"):
                committed_s = event["at"]
        self.transactions[name] = Transaction(name, steps, asked_s, committed_s)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and line.endswith(b"\n") else None


def _reads(run: Ledger) -> Iterator[dict[str, Any]]:
    """The newest reading of each kind and topic."""
    newest = {(event["what"], event["topic"]): event for event in run.events if event["event"] == "read"}
    yield from newest.values()


def _rows(path: Path, count: int) -> tuple[Row, ...] | None:
    """The rows in a file, None if they are not as many as were written or cannot be read."""
    try:
        rows = tuple(Row(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError, TypeError):
        return None
    return rows if len(rows) == count else None


def _check_complete(run: Ledger, workers: list[Ledger], oddities: list[str]) -> Iterator[str]:
    """Whether each process left the ledger that the supervisor saw, and ended as it should."""
    ended: dict[str, dict[str, Any]] = {
        event["ledger"]: event for event in run.events if event["event"] == "process"
    }
    sealed: dict[str, int] = defaultdict(int)
    for event in run.events:
        if event["event"] == "sealed":
            sealed.update(event["lines"])
    if not any(event["event"] == "end" for event in run.events):
        yield "the run has no end"
    there = {worker.name for worker in workers}
    early = {
        name for name, process in ended.items() if process["killed"] and name not in sealed
    }  # Killed before it wrote a line.
    for name in sorted(there - set(ended)):
        yield f"{name}: nobody saw the process of this ledger end"
    for name in sorted((set(ended) | set(sealed)) - early - there):
        yield f"{name}: the ledger of this process is gone"
    for worker in workers:
        yield from worker.troubles
        if worker.name not in ended:
            continue
        process = ended[worker.name]
        if worker.torn and not process["killed"]:
            yield f"{worker.name}: the ledger ends in the middle of a line, but its process was not killed"
        if not process["killed"] and (
            process["code"] != 0 or not worker.events or worker.events[-1]["event"] != "end"
        ):
            oddities.append(
                f"{worker.name}: its process ended by itself with exit code {process['code']}; see its "
                "error output"
            )
        if worker.name not in sealed or sealed[worker.name] != len(worker.events):
            yield f"{worker.name}: {len(worker.events)} lines are left of {sealed[worker.name]}"
