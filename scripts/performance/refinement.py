"""From intake files to archives, and back: refinement, odd messages, judging, the deep audit, memory."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.performance.measured import Measured, Results
from scripts.performance.sections import NO_AIM, Aim, Case, Section, at_least
from scripts.performance.words import figure, listed, paragraph, percent, ratio, shown, table, tenths, whole

RUNS = {
    "default": "the libraries, default options",
    "tuned": "the libraries, options of archives",
    "task": "a task, without Spark",
    "refine": "refinement on Spark",
    "refine_few": "refinement on Spark, a partition per core",
    "whole": "a whole run",
    "whole_few": "a whole run, a partition per core",
}
STEPS = {
    "read": ("read", "read"),
    "decode": ("decode", "decode"),
    "encode again (and compare)": ("encode and compare", "encode"),
    "write": ("write", "write"),
    "digest": ("digest", "digest"),
    "fsync": ("fsync", "fsync"),
    "everything else: columns into shape, compare, ingest times, bounds": (
        "everything else",
        "everything else",
    ),
}
"""What the libraries' steps and those of a task are called."""


def limit(results: Results) -> Section:
    """Refinement against the libraries that it stands on."""
    found = results("limit")
    shapes, records = found.parts("shapes"), whole(found.number("records"))
    wanted = {
        run: found.number(f"wanted_at_least.{run}")
        for run in ("refine", "whole", "tuned")
        if found.has(f"wanted_at_least.{run}")
    }
    intro = f"""
        {records} records of each message, {whole(found.number("partitions"))} partitions. *The libraries* are pyarrow and ptars
        alone, a process per core: read the same intake files, decode, encode again and compare, write one synced Parquet file each,
        zstd at the level of archives, with pyarrow's own options and with those of archives: encodings chosen from the same data,
        statistics outside of lists. A *task* is all that refinement does in one process without Spark; *refinement on Spark* runs
        from planning to stored archives on a warm session; a *whole run* is what `archiver archive` drives: it also reads the log,
        tells the ledger and commits to a table on a SQL catalog. *A partition per core* are the same records in fewer partitions, in
        intake files of their own, so in few large archives. Each repetition has the runs in another order. CPU seconds are
        those of all processes, the JVM and its workers among them. Ratios are of the same repetition; 1 would be as fast as the bare
        libraries. A task runs alone on its core, everything else on all at once."""
    beyond = """
        Beyond what the libraries do, a task splits the stream into an archive per partition, computes ingest times and record
        digests, finds map keys that are there twice and fields that are unknown, and stores an object per partition durably. Encodings
        are chosen from the data ([performance notes](performance-notes.md#parquet-encodings)). The
        [performance notes](performance-notes.md#a-refinement-task) say why targets are missed, and what was tried. Where the time goes (the task's by
        a profile, which itself takes some; the last line is what refinement on Spark takes more than a task, 0 where it takes less):"""
    names = [f"{name}, {one.number('raw_bytes_per_record'):.0f} B" for name, one in shapes.items()]
    head = f"thousand records per core-second, {whole(found.number('repetitions'))} repetitions"
    speeds = [
        [label, *(shown(one.spread(f"records_per_core_second.{run}").by(1000)) for one in shapes.values())]
        for run, label in RUNS.items()
    ]
    parts = [
        paragraph(intro),
        table([head, *names], speeds),
        table(
            ["ratio to the libraries with default options", *shapes], _ratios(list(shapes.values()), wanted)
        ),
        paragraph(beyond),
        table(
            [f"CPU seconds of {records} records: the libraries, a task", *shapes],
            _steps(list(shapes.values())),
        ),
    ]
    aims = [
        Aim(
            "Limit",
            f"{RUNS[run]}, by the CPU of the libraries with default options",
            f"at least {least} times",
            [at_least(least, one.spread(f"{run}_by_libraries"), name=name) for name, one in shapes.items()],
        )
        for run, least in wanted.items()
    ]
    return Section("Refinement", [("bench-limit", found)], parts, aims)


def _ratios(shapes: Sequence[Measured], wanted: dict[str, float]) -> list[list[str]]:
    """By the libraries."""
    ratios = {
        "a task": "task_by_libraries",
        f"refinement on Spark (target: {wanted['refine']})": "refine_by_libraries",
        "refinement on Spark, a partition per core": "refine_few_by_libraries",
        f"a whole run (target: {wanted['whole']})": "whole_by_libraries",
        "a whole run, a partition per core": "whole_few_by_libraries",
        "refinement on Spark, by the clock": "refine_wall_by_libraries",
    }
    rows = [[label, *(shown(one.spread(path), ratio) for one in shapes)] for label, path in ratios.items()]
    stored = [one.number("stored_bytes.archives") / one.number("stored_bytes.default") for one in shapes]
    return [*rows, ["bytes of archives by those of the libraries", *map(ratio, stored)]]


def _steps(shapes: Sequence[Measured]) -> list[list[str]]:
    """A row for each step of any run, also if it is not known here."""
    rows, known = [], {name for names in STEPS.values() for name in names}
    others = {
        name: (name, name)
        for one in shapes
        for who in ("default", "task")
        for name in one.parts(f"steps.{who}")
        if name not in known
    }
    for label, (theirs, ours) in {**STEPS, **others}.items():
        paths = (f"steps.default.{theirs}", f"steps.task.{ours}")
        if any(one.has(path) for one in shapes for path in paths):
            rows.append(
                [
                    label,
                    *(
                        ", ".join(tenths(one.number(path)) if one.has(path) else "-" for path in paths)
                        for one in shapes
                    ),
                ]
            )
    return [*rows, ["Spark, beyond the task", *(shown(one.spread("steps.spark"), tenths) for one in shapes)]]


CASES = {
    "flat": "40 columns, flat, against the libraries",
    "nested": "3 levels, nested, against the libraries",
    "one_bad": "flat, one bad record in {bad_every}",
    "unknown_top": "flat, two unknown fields behind the known ones in every record",
    "unknown_between": "flat, three unknown fields between known ones in every record",
    "unknown_nested": "nested, unknown fields on three levels in every record",
    "nanoseconds": "flat, nanoseconds in every timestamp",
    "groups": "a group in every record",
    "json": "JSON (a Struct) in every record",
}
WANTED_OF = {
    "plain": "against the libraries",
    "one_bad": "with a bad record",
    "unknown": "with unknown fields",
}


def schema(results: Results) -> Section:
    """Wide, deep and odd messages."""
    found = results("schema")
    cases = found.parts("cases")
    wanted = {kind: found.number(f"wanted_at_least.{kind}") for kind in WANTED_OF}
    told = listed([f"{least} {WANTED_OF[kind]}" for kind, least in wanted.items()])
    intro = f"""
        {whole(found.number("records"))} records of most cases ({whole(cases["json"].number("records"))} of the last two) from intake
        files to stored archives, as a task of refinement does it, in one process without Spark; *codec* is the part that turns values
        into columns and proves that they give the bytes back. By CPU, in turns: clean messages stand against pyarrow and ptars alone,
        odd ones against the clean case of the same message in the same repetition. Targets are {told}. The numbers and wire types of
        unknown fields are learnt from the first batch that has them, and the next ones are decoded with a descriptor that is extended
        by them. Records with unknown fields between known ones or with nanoseconds keep their bytes in addition to the columns and are encoded
        twice to prove what they hold."""
    labels = {
        name: CASES.get(name, name).format(bad_every=whole(found.number("bad_every"))) for name in cases
    }
    rows = [
        [f"{labels[name]} ({one.number('raw_bytes_per_record'):.0f} B)", *_odd(one)]
        for name, one in cases.items()
    ]
    judged = [
        (name, one.number(f"{_against(one)}.median"), one.at("wanted").value)
        for name, one in cases.items()
        if one.has("wanted")
    ]
    aim = Aim(
        "Odd messages",
        "records per CPU second, by those of the libraries or of a clean message",
        f"at least {told}",
        [Case(ratio(value), value >= wanted[kind], name.replace("_", " ")) for name, value, kind in judged],
    )
    head = [
        f"{whole(found.number('repetitions'))} repetitions",
        "thousand records per CPU second",
        "ratio",
        "of the codec",
    ]
    return Section(
        "Wide, deep and odd messages", [("bench-schema", found)], [paragraph(intro), table(head, rows)], [aim]
    )


def _against(one: Measured) -> str:
    return "ratio_to_plain" if one.has("ratio_to_plain") else "ratio_to_clean"


def _odd(one: Measured) -> list[str]:
    paths = (_against(one), "codec_ratio_to_clean")
    ratios = [shown(one.spread(path), ratio) if one.has(path) else "" for path in paths]
    return [shown(one.spread("records_per_cpu_second").by(1000)), *ratios]


def edge(results: Results) -> Section:
    """What judging costs senders."""
    found = results("edge")
    rows = []
    for name, message in found.parts("messages").items():
        for call in ("send", "send_batch"):
            one = message.at(call)
            cells = [shown(one.spread(path)) for path in ("none.us", "reject.added_us")]
            cells += [shown(one.spread(f"{path}.ratio"), ratio) for path in ("reject", "coerce")]
            rows.append([f"{name} ({message.number('value_bytes'):.0f} B), `{call}`", *cells])
    single, batch = (whole(found.number(f"messages.small.{call}.records")) for call in ("send", "send_batch"))
    intro = f"""
        CPU microseconds of the whole process per record, from handing it over to its acknowledgement, into a local folder, by what the
        topic asks of values ([schemas.md](schemas.md)): nothing, `validate: reject`, and that with `coerce`. {single} records one by
        one (`send`), {batch} as one batch; {whole(found.number("repetitions"))} repetitions in turns. Ratios are *none* by the case in
        the same repetition. Batches go through the fast engine as columns, single records through the complete one, one by one."""
    head = ["message and call", "none, µs", "reject adds, µs", "reject, ratio", "reject and coerce, ratio"]
    return Section("Records that are judged", [("bench-edge", found)], [paragraph(intro), table(head, rows)])


AUDITED_ROWS_PER_S = 1_000_000
"""The target of the deep audit on two cores; the result does not contain it."""
AUDITS = {
    "deep_with_intake": "`audit --deep`, all intake still there",
    "deep": "`audit --deep`, intake cleaned away",
}
AUDIT_PARTS = {
    "rebuild": "rebuilding the producers' bytes",
    "read": "reading",
    "digest": "digesting",
    "look": "checks of offsets and times",
}


def deep_audit(results: Results) -> Section:
    """The deep audit compared with refinement."""
    found = results("deep_audit")
    rounds = whole(found.number("rounds"))
    rows = [["refinement", shown(found.spread("refine_rows_per_s").by(1000)), ""]]
    rows += [
        [
            label,
            shown(found.spread(f"{path}_rows_per_s").by(1000)),
            shown(found.spread(f"{path}_to_refine"), ratio),
        ]
        for path, label in AUDITS.items()
    ]
    workers, jvm, driver = (
        found.number(f"deep_cpu_us_per_row.{part}") for part in ("workers", "jvm", "program")
    )
    profile = found.at("worker_cpu_us_per_row")
    shares = [
        f"{label} {percent(profile.number(f'{name}.median') / profile.number('all.median'))}"
        for name, label in AUDIT_PARTS.items()
    ]
    intro = f"""
        Orders of about 140 bytes in four partitions, refined and then audited on the same local session. {rounds} rounds of
        {whole(found.number("rows_per_round"))} rows, each refined and followed by an audit of the whole table so far; then the intake
        is removed, and all rows are audited {rounds} times. A ratio is the audit's rows per second by those of refinement in the same
        round. Rows whose intake is still there are read and compared a second time. Of {figure(workers + jvm + driver)} µs of CPU for a
        row without intake, {figure(workers)} are the workers', {figure(jvm, 2)} Spark's and {figure(driver, 2)} the driver's; a
        worker's part by a profile: {listed(shares)} ([decision 0051](decisions/0051-the-deep-audit-reads-for-itself.md)). The fast
        audit of the same table took {found.number("fast_audit_s.median"):.2f} s."""
    case = at_least(AUDITED_ROWS_PER_S / 1000, found.spread("deep_rows_per_s").by(1000), figure)
    aim = Aim(
        "Deep audit",
        "thousand rows a second, intake cleaned away",
        f"at least {whole(AUDITED_ROWS_PER_S / 1000)}",
        [case],
    )
    parts = [paragraph(intro), table(["", "thousand rows a second", "ratio"], rows)]
    return Section("The deep audit", [("bench-deep-audit", found)], parts, [aim])


def late_store(results: Results) -> Section:
    """Intake that is read ahead, and archives that are stored while their task goes on."""
    found = results("late_store")
    intro = f"""
        One task refines {whole(found.number("records"))} orders from and into a local folder that answers late when an intake file is
        opened and when an archive is created, as a bucket does that is so far away; other reads are as quick as the disk. Everything is
        waited for (`archive.reads_max` and `archive.uploads_max` 0), or up to {whole(found.number("reads_max"))} intake files are read
        ahead and {whole(found.number("uploads_max"))} archives stored while the task goes on, as with a bucket;
        {whole(found.number("repetitions"))} repetitions in turns
        ([performance notes](performance-notes.md#waiting-for-the-store)). Where nothing is late both took the same CPU in this run;
        measured again on Spark with every core at work, reading ahead took 3 to 5 % more, so it is off with a folder
        ([performance notes](performance-notes.md#waiting-for-the-store))."""
    rows = [
        [
            f"{whole(topic.number('archives'))} of {whole(topic.number('intake_files'))} files",
            f"{whole(one.number('late_ms'))} ms",
            *(shown(one.spread(name), figure) for name in ("waiting_s", "ahead_s")),
            *(shown(one.spread(name), ratio) for name in ("clock_ratio", "cpu_ratio")),
        ]
        for topic in found.each("topics")
        for one in topic.each("cases")
    ]
    head = ["archives", "answers later by", "waiting, s", "not waiting, s", "ratio by the clock", "by CPU"]
    return Section(
        "A store that answers late", [("bench-late-store", found)], [paragraph(intro), table(head, rows)]
    )


MEMORY_OF = {
    "a Python worker": "worker",
    "the workers' parent": "parent of workers",
    "the command itself": "driver",
    "the JVM": "jvm",
}


def memory(results: Results) -> Section:
    """Peaks by process."""
    found = results("memory")
    backlogs = found.parts("backlogs")
    rows = [
        [name, *(whole(one.number(name)) for one in backlogs.values())] for name in ("records", "archives")
    ]
    rows += [
        [f"{label}, MiB", *(whole(one.number(f"peak_mib.{kind}")) for one in backlogs.values())]
        for label, kind in MEMORY_OF.items()
    ]
    rows += [
        [
            "all together at one time, shared pages once, MiB",
            *(whole(one.number("together_mib")) for one in backlogs.values()),
        ]
    ]
    first, *_, last = backlogs
    intro = f"""
        What `archiver archive --all` takes with default settings, process by process, for backlogs of nested orders in one partition.
        Peaks are those that Linux keeps of each process, the highest of a kind. A task holds a row group
        ({whole(found.number("bounds.row_group_bytes") / 2**20)} MiB of columns) of each archive that it writes at the same time,
        for any backlog; here that is one, and as many tasks run at a time as there are cores. For some milliseconds a process that a
        JVM starts has the JVM's memory; a peak of the workers' parent may be that."""
    case = Case(f"{ratio(found.number('worker_last_by_first'))} times", reached=None)
    aim = Aim("Memory", f"peak of a Python worker, backlog of {last} by that of {first}", NO_AIM, [case])
    return Section(
        "Memory",
        [("bench-memory", found)],
        [paragraph(intro), table(["a backlog of", *backlogs], rows)],
        [aim],
    )
