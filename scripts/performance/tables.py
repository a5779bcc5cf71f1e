"""A table that gets older, a log that gets longer, and archives that wait."""

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
    "commit_by_young": ("commit, p50, by that of a young table", ratio),
    "commit_cpu_by_young": ("commit, CPU, by that of a young table", ratio),
    "checkpoint_bytes": ("checkpoint of the ledger", lambda value: size(value) if value else "none yet"),
    "metadata_store_bytes": ("metadata store", size),
    "restart_cpu_s": ("restart: CPU to read both logs", seconds),
    "restart_mib": ("restart: memory at its peak, MiB", whole),
    "audit_entries_per_cpu_s": ("fast audit, entries per CPU second", whole),
    "audit_mib": ("fast audit, memory at its peak, MiB", whole),
}
LOG_ROWS: Rows = {
    "restart_cpu_s": ("restart: read the log from its newest checkpoint", seconds),
    "first_look_cpu_s": ("first poll of every partition", seconds),
    "look_cpu_s": ("every later one, as each tick takes", seconds),
    "plan_cpu_s": ("planning a round", seconds),
    "plan_us_per_segment": ("of which for a segment, µs", figure),
    "metadata_store_bytes": ("metadata store", size),
    "restart_mib": ("memory at its peak, planning included, MiB", whole),
}
GROWN = {"bytes": "bytes", "requests": "requests", "p50": "p50"}


def growth(results: Results) -> Section:
    """The life of a table."""
    found, log = results("growth"), LogSettings()
    wanted, tables = found.at("wanted"), found.each("tables")
    intro = f"""
        Rounds on a table, each with an archive of every partition, and the intake log that brings their records. The committer on a SQL
        catalog in SQLite, metadata on a local disk, both logs in SQLite with checkpoints as in life, a commit every
        {found.number("cadence_s"):g} s as the snapshots show it. Columns are the {whole(found.number("window_commits"))} commits from
        there on. Times are compared within the same minutes: in a later window each commit to the old table is followed by one to a
        young table. Restart and audit are a new process each. A curve that ends early is one whose run had no more time. What a new
        process reads for a start has a bound, the
        {whole(log.checkpoint_entries)} entries or {_mib(log)} MiB of each log since its newest checkpoint
        ([decision 0045](decisions/0045-checkpoints-of-the-ledger.md)), and so has the ledger's checkpoint: 65,536 earlier watermarks of
        a topic and 512 times of a partition. What is kept of a table has bounds of its own
        ([decision 0032](decisions/0032-table-metadata-stays-bounded.md))."""
    parts = [
        paragraph(intro),
        *(_curves(f"{_archives(one)}, after commits", one, TABLE_ROWS) for one in tables),
    ]
    return Section(
        "The life of a table",
        [("bench-growth", found)],
        parts,
        [*_commit_aims(tables, wanted), _audit_aim(tables, wanted)],
    )


def _mib(log: LogSettings) -> str:
    return whole(log.checkpoint_bytes / 2**20)


def _archives(one: Measured) -> str:
    count = one.number("partitions")
    return f"{whole(count)} archive{'' if count == 1 else 's'} a commit"


def _curves(what: str, one: Measured, rows: Rows) -> str:
    """The figures at each age."""
    curves = one.at("curves")
    ages = list(curves.parts(f"{next(iter(rows))}.points"))
    cells = []
    for name, (label, how) in rows.items():
        grown = f"{name}.last_by_first"
        points = [how(curves.number(f"{name}.points.{age}")) for age in ages]
        cells.append([label, *points, ratio(curves.number(grown)) if curves.has(grown) else ""])
    return table([what, *(whole(float(age)) for age in ages), "last by first"], cells)


def _commit_aims(tables: list[Measured], wanted: Measured) -> list[Aim]:
    """What a commit costs later, by its first window."""
    aims = []
    for name, label in GROWN.items():
        most = wanted.number(name)
        values = {_archives(one): one.number(f"growth.{name}") for one in tables}
        cases = [Case(ratio(value), value <= most, what) for what, value in values.items()]
        aims.append(
            Aim(
                "Growth",
                f"{label} of a commit, the worst later window by the first",
                f"at most {most:g} times",
                cases,
            )
        )
    return aims


def _audit_aim(tables: list[Measured], wanted: Measured) -> Aim:
    """The fast audit of the largest table: of a small one most is what comes with a start."""
    sizes = [max(part.number("then.archives") for part in one.parts("windows").values()) for one in tables]
    archives, largest = max(zip(sizes, tables, strict=True), key=lambda pair: pair[0])
    speed, least = largest.number("growth.audit_entries_per_cpu_s"), wanted.number("audit_entries_per_cpu_s")
    what = f"fast audit of {whole(archives)} archives, entries per CPU second"
    return Aim("Growth", what, f"at least {whole(least)}", [Case(whole(speed), speed >= least)])


def long_log(results: Results) -> Section:
    """An intake log without archiving."""
    found = results("growth")
    log, limits = found.at("intake"), LogSettings()
    intro = f"""
        The same run fills an intake log with entries of {whole(log.number("segments_per_entry"))} segments over
        {whole(log.number("partitions"))} partitions, archiving off, and asks a new process, always where it has most to do: just before
        a checkpoint is due (every {whole(limits.checkpoint_entries)} entries or {_mib(limits)} MiB).
        Restart, looks and planning are CPU time. A round takes 500,000 segments at
        most, so planning one has a bound, too; those before the newest checkpoint are in history files. `make sweep-log` takes a
        million entries through checkpoints ([decision 0012](decisions/0012-shelves-are-a-function-of-the-log.md))."""
    parts = [paragraph(intro), _curves("entries behind, nothing archived", log, LOG_ROWS)]
    return Section("A long log", [("bench-growth", found)], parts)


def backlog(results: Results) -> Section:
    """Archives that wait for one commit."""
    found = results("backlog")
    cases = found.each("cases")
    names = [whole(one.number("files")) for one in cases]
    intro = f"""
        {listed(names)} archives with bounds of {whole(cases[0].number("columns_with_bounds"))} columns each, which wait for one commit
        to a table on a SQL catalog in SQLite; {whole(found.number("rounds"))} rounds, each in a new table. By default
        `archive.pending_files_max` lets {whole(ArchiveSettings().pending_files_max)} wait."""
    rows = [
        [
            "kept in the fold of the ledger, kB each",
            *(shown(one.spread("folded_bytes").by(1000), tenths) for one in cases),
        ],
        [
            "once its description was decoded",
            *(shown(one.spread("described_bytes").by(1000), tenths) for one in cases),
        ],
        ["CPU of the commit", *(shown(one.spread("commit_cpu_s"), seconds) for one in cases)],
        [
            "CPU to read its manifests, by pyiceberg",
            *(shown(one.spread("library_cpu_s"), seconds) for one in cases),
        ],
        ["by our own reader, times that", *(shown(one.spread("ours_by_library"), ratio) for one in cases)],
    ]
    return Section(
        "Archives that wait",
        [("bench-backlog", found)],
        [paragraph(intro), table(["archives", *names], rows)],
    )
