"""Sections about refinement: its limit, odd messages, validation, the deep audit, a slow store, memory."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.performance.measured import Measured, Results
from scripts.performance.sections import NO_AIM, Aim, Case, Section, at_least
from scripts.performance.words import (
    bullets,
    figure,
    listed,
    paragraph,
    percent,
    ratio,
    shown,
    table,
    tenths,
    whole,
)

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
    "everything else: conversion of columns, comparison, ingest times, bounds": (
        "everything else",
        "everything else",
    ),
}
"""Label of each step, with its name in the result for the libraries and for a task."""


def limit(results: Results) -> Section:
    """Refinement compared with the libraries that it uses."""
    found = results("limit")
    shapes, records = found.parts("shapes"), whole(found.number("records"))
    targets = {name: found.number(f"wanted_at_least.{name}") for name in shapes}
    intro = f"""
        This compares refinement with the libraries that it uses, for {records} records of each message, in
        {whole(found.number("partitions"))} partitions. *Narrow* has few columns, *wide* has many, and *nested* are orders with lines and a map. The
        runs:"""
    runs = bullets(
        [
            """*The libraries* are pyarrow and ptars alone, in one process per core. They read the same intake files, decode,
            encode again and compare. Each process writes one Parquet file with fsync, at the zstd level of archives. One variant
            has pyarrow's default options. The other has the options of archives: encodings chosen from the same data, and
            statistics only outside of lists.""",
            """*A task* is all the work of one refinement task, in one process without Spark. It runs alone on one core; all other
            runs use all cores at once.""",
            "*Refinement on Spark* runs from planning to stored archives, on a warm session.",
            """*A whole run* is what `archiver archive` does. It also reads the log, appends to the ledger and commits to a table on
            a SQL catalog.""",
            """*A partition per core* has the same records in fewer partitions, in intake files of its own. So its archives are few
            and large.""",
        ]
    )
    counted = """
        The order of the runs changes with each repetition. CPU seconds are those of all processes, including the JVM and its Python
        workers. Each ratio compares runs of the same repetition. A ratio of 1 means that
        refinement needs no more CPU per record than the libraries alone."""
    beyond = """
        A task does work that the libraries do not do. It splits the stream into one archive per partition, and computes ingest times
        and record digests. It detects duplicate map keys and unknown fields. It stores one object per partition durably. Encodings are
        chosen from the data ([performance notes](performance-notes.md#parquet-encodings)). The
        [performance notes](performance-notes.md#a-refinement-task) explain why targets are missed, and what was tried."""
    steps = """
        The next table shows where the CPU time goes. The times of a task are from a profile, which itself adds some time. The last row is
        the CPU that refinement on Spark takes in addition to a task. It is 0 if refinement on Spark takes less."""
    names = [f"{name}, {one.number('raw_bytes_per_record'):.0f} B" for name, one in shapes.items()]
    head = f"thousand records per core-second, {whole(found.number('repetitions'))} repetitions"
    speeds = [
        [label, *(shown(one.spread(f"records_per_core_second.{run}").by(1000)) for one in shapes.values())]
        for run, label in RUNS.items()
    ]
    parts = [
        paragraph(intro),
        runs,
        paragraph(counted),
        table([head, *names], speeds),
        table(
            ["ratio to the libraries with default options", *shapes],
            _ratios(list(shapes.values()), list(targets.values())),
        ),
        paragraph(beyond),
        paragraph(steps),
        table(
            [f"CPU seconds for {records} records: the libraries, a task", *shapes],
            _steps(list(shapes.values())),
        ),
    ]
    aim = Aim(
        "Refinement",
        "refinement on Spark: records per core-second, relative to the libraries with default options",
        f"at least {listed([f'{name} {ratio(least)}' for name, least in targets.items()])} times",
        [
            at_least(targets[name], one.spread("refine_by_libraries"), name=name)
            for name, one in shapes.items()
        ],
    )
    return Section("Refinement", [("bench-limit", found)], parts, [aim])


def _ratios(shapes: Sequence[Measured], targets: Sequence[float]) -> list[list[str]]:
    """Ratios to the libraries with default options."""
    ratios = {
        "a task": "task_by_libraries",
        "refinement on Spark": "refine_by_libraries",
        "refinement on Spark, a partition per core": "refine_few_by_libraries",
        "a whole run": "whole_by_libraries",
        "a whole run, a partition per core": "whole_few_by_libraries",
        "refinement on Spark, by elapsed time": "refine_wall_by_libraries",
    }
    rows = [[label, *(shown(one.spread(path), ratio) for one in shapes)] for label, path in ratios.items()]
    stored = [one.number("stored_bytes.archives") / one.number("stored_bytes.default") for one in shapes]
    return [
        ["target of refinement on Spark", *map(ratio, targets)],
        *rows,
        ["bytes of archives, relative to the files of the libraries", *map(ratio, stored)],
    ]


def _steps(shapes: Sequence[Measured]) -> list[list[str]]:
    """A row for each step of any run, including steps without a label here."""
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
    return [
        *rows,
        ["Spark, in addition to the task", *(shown(one.spread("steps.spark"), tenths) for one in shapes)],
    ]


CASES = {
    "flat": "flat, 40 columns, compared with the libraries",
    "nested": "nested, 3 levels, compared with the libraries",
    "one_bad": "flat, one bad record in {bad_every}",
    "unknown_top": "flat, two unknown fields after the known ones in every record",
    "unknown_between": "flat, three unknown fields between known ones in every record",
    "unknown_nested": "nested, unknown fields on three levels in every record",
    "nanoseconds": "flat, nanoseconds in every timestamp",
    "groups": "a group in every record",
    "json": "JSON (a Struct) in every record",
}
FORMATS = {"avro": "Avro", "json": "JSON"}
FORMAT_CASES = {
    "narrow": "{form}, 8 columns",
    "flat": "{form}, 40 columns",
    "nested": "{form}, nested, 3 levels",
    "one_bad": "{form}, 40 columns, one bad record in {bad_every}, compared with {form}",
}
"""Labels of messages that are measured in several formats."""
TARGET_OF = {
    "plain": "compared with the libraries",
    "one_bad": "with a bad record",
    "unknown": "with unknown fields",
    "avro": "as Avro compared with Protobuf",
    "json": "as JSON compared with Protobuf",
}


def schema(results: Results) -> Section:
    """Wide, deep and odd messages."""
    found = results("schema")
    cases = found.parts("cases")
    targets = {kind: found.number(f"wanted_at_least.{kind}") for kind in TARGET_OF}
    text = listed([f"{least} {TARGET_OF[kind]}" for kind, least in targets.items()])
    intro = f"""
        Each case takes {whole(found.number("records"))} records ({whole(cases["json"].number("records"))} in the last two cases) from
        intake files to stored archives. The work is that of a refinement task, in one process without Spark. *Codec* is the part that
        converts values to columns and checks that they encode to the same bytes. Figures are CPU time, and the cases run in turns. Clean
        messages are compared with pyarrow and ptars alone. Odd messages are compared with the clean case of the same message in the same
        repetition. Targets are
        {text}. The numbers and wire types of unknown fields are learnt from the first batch that has them. A descriptor extended by these
        fields decodes the next batches. Records with unknown fields between known ones, or with nanoseconds, keep their bytes in addition
        to the columns. They are encoded twice to check what the columns hold."""
    labels = {
        name: CASES.get(name, name).format(bad_every=whole(found.number("bad_every"))) for name in cases
    }
    rows = [
        [f"{labels[name]} ({one.number('raw_bytes_per_record'):.0f} B)", *_odd(one)]
        for name, one in cases.items()
    ]
    other_formats = [one for form in FORMATS for one in found.parts(f"{form}.cases").items()]
    judged = [
        (name, one.number(f"{_against(one)}.median"), one.at("wanted").value)
        for name, one in (*cases.items(), *other_formats)
        if one.has("wanted")
    ]
    aim = Aim(
        "Odd messages",
        "records per CPU second, relative to the libraries, to a clean message, or to Protobuf",
        f"at least {text}",
        [Case(ratio(value), value >= targets[kind], name.replace("_", " ")) for name, value, kind in judged],
    )
    parts = [paragraph(intro), table(_schema_head(found), rows)]
    for form in FORMATS:
        parts += _other_format(found, form)
    return Section("Wide, deep and odd messages", [("bench-schema", found)], parts, [aim])


def _schema_head(found: Measured) -> list[str]:
    return [
        f"{whole(found.number('repetitions'))} repetitions",
        "thousand records per CPU second",
        "ratio",
        "ratio of the codec",
    ]


def _other_format(found: Measured, form: str) -> list[str]:
    """The same messages in another format and as Protobuf."""
    one, name = found.at(form), FORMATS[form]
    text = f"""
        *{name}*: the same values as {name} and as Protobuf, without an envelope, {whole(one.number("records"))} records. Ratios are to
        Protobuf in the same repetition. The cases of this table run in turns, at a load of {one.number("load_average.0"):.1f}."""
    rows = []
    for case, figures in one.parts("cases").items():
        label = FORMAT_CASES[case.removeprefix(f"{form}_")].format(
            form=name if case.startswith(form) else "Protobuf", bad_every=whole(found.number("bad_every"))
        )
        rows.append([f"{label} ({figures.number('raw_bytes_per_record'):.0f} B)", *_odd(figures)])
    return [paragraph(text), table(_schema_head(one), rows)]


def _against(one: Measured) -> str:
    return "ratio_to_plain" if one.has("ratio_to_plain") else "ratio_to_clean"


def _odd(one: Measured) -> list[str]:
    paths = (_against(one), "codec_ratio_to_clean")
    ratios = [shown(one.spread(path), ratio) if one.has(path) else "" for path in paths]
    return [shown(one.spread("records_per_cpu_second").by(1000)), *ratios]


def edge(results: Results) -> Section:
    """The CPU that validation costs senders."""
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
        CPU time of the whole process per record, from the call to the acknowledgement, with a local folder. The cases are settings of the
        topic ([schemas.md](schemas.md)): *none*, `validate: reject`, and `validate: reject` with `coerce`. {single} records are sent one by
        one (`send`), and {batch} as one batch (`send_batch`). {whole(found.number("repetitions"))} repetitions run in turns. A ratio is the
        time of *none* divided by the time of the case, in the same repetition. A ratio of 1 would mean that validation costs nothing. Batches pass through the fast
        engine as columns. Single records pass through the complete engine, one by one."""
    head = ["message and call", "none, µs", "reject adds, µs", "reject, ratio", "reject and coerce, ratio"]
    return Section("Validation of records", [("bench-edge", found)], [paragraph(intro), table(head, rows)])


AUDITED_ROWS_PER_S = 1_000_000
"""The target of the deep audit on two cores; the result does not contain it."""
AUDITS = {
    "deep_with_intake": "`audit --deep`, all intake retained",
    "deep": "`audit --deep`, intake deleted",
}
AUDIT_PARTS = {
    "rebuild": "rebuilding the producers' bytes",
    "read": "reading",
    "digest": "computing digests",
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
        Orders of about 140 bytes in four partitions are refined and then audited, on the same local Spark session. Each of {rounds} rounds
        refines {whole(found.number("rows_per_round"))} rows and then audits the whole table so far. Then the intake is removed, and all rows are
        audited {rounds} times. A ratio is the audit's rows per second divided by those of refinement in the same round. Rows whose intake
        still exists are read and compared a second time. A row without intake takes {figure(workers + jvm + driver)} µs of CPU:
        {figure(workers)} in the workers, {figure(jvm, 2)} in Spark's JVM and {figure(driver, 2)} in the driver. A profile divides the CPU of a worker:
        {listed(shares)} ([decision 0051](decisions/0051-the-deep-audit-reads-for-itself.md)). The fast audit of the same table took
        {found.number("fast_audit_s.median"):.2f} s."""
    case = at_least(AUDITED_ROWS_PER_S / 1000, found.spread("deep_rows_per_s").by(1000), figure)
    aim = Aim(
        "Deep audit",
        "thousand rows per second, intake deleted",
        f"at least {whole(AUDITED_ROWS_PER_S / 1000)}",
        [case],
    )
    parts = [paragraph(intro), table(["", "thousand rows per second", "ratio"], rows)]
    return Section("The deep audit", [("bench-deep-audit", found)], parts, [aim])


def late_store(results: Results) -> Section:
    """Reading intake ahead and storing archives in parallel, with a slow store."""
    found = results("late_store")
    intro = f"""
        One task refines {whole(found.number("records"))} orders from and into a local folder. The folder responds with a delay when an
        intake file is opened and when an archive is created, like a distant bucket. Other reads are as fast as the disk. *Waiting* means
        that the task waits for each response (`archive.reads_max` and `archive.uploads_max` are 0). *Not waiting* means the behaviour with
        a bucket. Up to {whole(found.number("reads_max"))} intake files are read ahead, and up to {whole(found.number("uploads_max"))}
        archives are stored while the task continues. Both run in turns, {whole(found.number("repetitions"))} repetitions. A ratio is
        waiting divided by not waiting: above 1, not waiting is faster. Without a delay both took the same CPU in this run. In another
        measurement on Spark, with every core busy, reading ahead took 3 to 5 % more CPU. So it is off with a folder
        ([performance notes](performance-notes.md#waiting-for-the-store))."""
    rows = [
        [
            f"{whole(topic.number('archives'))} from {whole(topic.number('intake_files'))} files",
            f"{whole(one.number('late_ms'))} ms",
            *(shown(one.spread(name), figure) for name in ("waiting_s", "ahead_s")),
            *(shown(one.spread(name), ratio) for name in ("clock_ratio", "cpu_ratio")),
        ]
        for topic in found.each("topics")
        for one in topic.each("cases")
    ]
    head = [
        "archives and intake files",
        "delay",
        "waiting, s",
        "not waiting, s",
        "ratio of elapsed time",
        "ratio of CPU",
    ]
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
    """Peak memory by process."""
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
            "all processes at one time, shared pages counted once, MiB",
            *(whole(one.number("together_mib")) for one in backlogs.values()),
        ]
    ]
    first, *_, last = backlogs
    intro = f"""
        Memory of `archiver archive --all` with default settings, by process, for backlogs of nested orders in one partition. Peaks are the
        values that Linux keeps for each process. For several processes of a kind it is the highest one. A task holds one row group
        ({whole(found.number("bounds.row_group_bytes") / 2**20)} MiB of columns) of each archive that it writes at the same time,
        for any backlog. Here that is one archive, and as many tasks run at a time as there are cores. A process that a JVM starts has
        the JVM's memory for some milliseconds. The peak of the workers' parent may be that value."""
    case = Case(f"{ratio(found.number('worker_last_by_first'))} times", reached=None)
    aim = Aim(
        "Memory", f"peak memory of a Python worker, backlog of {last} relative to {first}", NO_AIM, [case]
    )
    return Section(
        "Memory",
        [("bench-memory", found)],
        [paragraph(intro), table(["a backlog of", *backlogs], rows)],
        [aim],
    )
