"""Sections about growth: the age of a table, the length of a log, and pending archives."""

from __future__ import annotations

from archiver.config.groups import LogSettings
from archiver.config.topics import ArchiveSettings
from scripts.performance.measured import Measured, Results
from scripts.performance.sections import Aim, Case, Section
from scripts.performance.words import (
    Writing,
    figure,
    listed,
    paragraph,
    ratio,
    seconds,
    shown,
    size,
    table,
    tenths,
    whole,
)

Rows = dict[str, tuple[str, Writing]]
TABLE_ROWS: Rows = {
    "archives": ("archives in the ledger, and entries in manifests", whole),
    "requests_per_commit": ("requests", ratio),
    "bytes_per_commit": ("bytes read and written", size),
    "commit_by_young": ("commit, p50, relative to a young table", ratio),
    "commit_cpu_by_young": ("commit, CPU, relative to a young table", ratio),
    "checkpoint_bytes": ("checkpoint of the ledger", lambda value: size(value) if value else "none yet"),
    "metadata_store_bytes": ("metadata store", size),
    "restart_cpu_s": ("restart: CPU to read both logs", seconds),
    "restart_mib": ("restart: peak memory, MiB", whole),
    "audit_entries_per_cpu_s": ("fast audit, entries per CPU second", whole),
    "audit_mib": ("fast audit, peak memory, MiB", whole),
}
LOG_ROWS: Rows = {
    "restart_cpu_s": ("restart: read the log from its newest checkpoint", seconds),
    "first_look_cpu_s": ("first poll of every partition", seconds),
    "look_cpu_s": ("every later poll, one per tick", seconds),
    "plan_cpu_s": ("planning a round", seconds),
    "plan_us_per_segment": ("planning, for each segment, µs", figure),
    "metadata_store_bytes": ("metadata store", size),
    "restart_mib": ("peak memory, including planning, MiB", whole),
}
GROWN = {
    "bytes": "bytes of a commit, worst later window relative to the first",
    "requests": "requests of a commit, worst later window relative to the first",
    "p50": "p50 of a commit, worst later window relative to a young table",
}


def growth(results: Results) -> Section:
    """The cost of commits, restarts and audits as a table gets older."""
    found, log = results("growth"), LogSettings()
    target, tables = found.at("wanted"), found.each("tables")
    intro = f"""
        Each round adds one archive of every partition to a table. The intake log has the entries that name their records. The committer uses
        a SQL catalog in SQLite, with metadata on a local disk. Both logs are in SQLite, with checkpoints as in production. The timestamps
        of the snapshots are {found.number("cadence_s"):g} s apart. A column is the window of
        {whole(found.number("window_commits"))} commits from
        that age on. Times are compared within the same minutes: in later windows, commits to the old table alternate with commits to a young
        table. Restart and audit each run in a new process. A curve ends early if the run had no more time."""
    bounds = f"""
        What a new process reads at its start is bounded: {whole(log.checkpoint_entries)} entries or {_mib(log)} MiB of each log since its
        newest checkpoint ([decision 0045](decisions/0045-checkpoints-of-the-ledger.md)). The ledger's checkpoint is bounded, too: 65,536
        earlier watermarks of a topic and 512 times of a partition. Table metadata has its own bounds
        ([decision 0032](decisions/0032-table-metadata-stays-bounded.md))."""
    parts = [
        paragraph(intro),
        paragraph(bounds),
        *(_curves(f"{_archives(one)}, after commits", one, TABLE_ROWS) for one in tables),
    ]
    return Section(
        "The life of a table",
        [("bench-growth", found)],
        parts,
        [*_commit_aims(tables, target), _audit_aim(tables, target)],
    )


def _mib(log: LogSettings) -> str:
    return whole(log.checkpoint_bytes / 2**20)


def _archives(one: Measured) -> str:
    count = one.number("partitions")
    return f"{whole(count)} archive{'' if count == 1 else 's'} a commit"


def _curves(what: str, one: Measured, rows: Rows) -> str:
    """A table of the figures at each age."""
    curves = one.at("curves")
    ages = list(curves.parts(f"{next(iter(rows))}.points"))
    cells = []
    for name, (label, how) in rows.items():
        grown = f"{name}.last_by_first"
        points = [how(curves.number(f"{name}.points.{age}")) for age in ages]
        cells.append([label, *points, ratio(curves.number(grown)) if curves.has(grown) else ""])
    return table([what, *(whole(float(age)) for age in ages), "last / first"], cells)


def _commit_aims(tables: list[Measured], target: Measured) -> list[Aim]:
    """The targets for the growth of a commit."""
    aims = []
    for name, label in GROWN.items():
        most = target.number(name)
        values = {_archives(one): one.number(f"growth.{name}") for one in tables}
        cases = [Case(ratio(value), value <= most, what) for what, value in values.items()]
        aims.append(
            Aim(
                "Growth",
                label,
                f"at most {most:g} times",
                cases,
            )
        )
    return aims


def _audit_aim(tables: list[Measured], target: Measured) -> Aim:
    """The target for the fast audit of the largest table. In a small table the start takes most of the time."""
    sizes = [max(part.number("then.archives") for part in one.parts("windows").values()) for one in tables]
    archives, largest = max(zip(sizes, tables, strict=True), key=lambda pair: pair[0])
    speed, least = largest.number("growth.audit_entries_per_cpu_s"), target.number("audit_entries_per_cpu_s")
    what = f"fast audit of {whole(archives)} archives, entries per CPU second"
    return Aim("Growth", what, f"at least {whole(least)}", [Case(whole(speed), speed >= least)])


def long_log(results: Results) -> Section:
    """An intake log that grows without archiving."""
    found = results("growth")
    log, limits = found.at("intake"), LogSettings()
    intro = f"""
        The same run fills an intake log with entries of {whole(log.number("segments_per_entry"))} segments over
        {whole(log.number("partitions"))} partitions, while archiving is off. A new process then restarts, polls and plans at the most
        expensive time: just before a checkpoint is due (every {whole(limits.checkpoint_entries)} entries or {_mib(limits)} MiB). Times are
        CPU time. A round takes 500,000 segments at most, so the cost of planning a round is bounded, too. Segments before the newest
        checkpoint are in history files. `make sweep-log` runs a million entries through checkpoints
        ([decision 0012](decisions/0012-history-and-checkpoints-follow-from-the-log.md))."""
    parts = [paragraph(intro), _curves("entries in the log, none archived", log, LOG_ROWS)]
    return Section("A long log", [("bench-growth", found)], parts)


def backlog(results: Results) -> Section:
    """Pending archives that enter a table in one commit."""
    found = results("backlog")
    cases = found.each("cases")
    names = [whole(one.number("files")) for one in cases]
    intro = f"""
        {listed(names)} pending archives, with bounds of {whole(cases[0].number("columns_with_bounds"))} columns each, enter a table in one
        commit. The table is on a SQL catalog in SQLite. Each of {whole(found.number("rounds"))} rounds uses a new table. By default
        `archive.pending_files_max` allows {whole(ArchiveSettings().pending_files_max)} pending archives."""
    rows = [
        [
            "memory in the fold of the ledger, kB for each archive",
            *(shown(one.spread("folded_bytes").by(1000), tenths) for one in cases),
        ],
        [
            "the same, once its description is decoded",
            *(shown(one.spread("described_bytes").by(1000), tenths) for one in cases),
        ],
        ["CPU of the commit", *(shown(one.spread("commit_cpu_s"), seconds) for one in cases)],
        [
            "CPU to read the manifests with pyiceberg",
            *(shown(one.spread("library_cpu_s"), seconds) for one in cases),
        ],
        [
            "CPU of the archiver's own reader, relative to pyiceberg",
            *(shown(one.spread("ours_by_library"), ratio) for one in cases),
        ],
    ]
    return Section(
        "Pending archives",
        [("bench-backlog", found)],
        [paragraph(intro), table(["archives", *names], rows)],
    )
