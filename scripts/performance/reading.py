"""Sections about what users observe: peers, freshness, many partitions, compaction."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from archiver.config.topics import ArchiveSettings
from archiver.runtime.text import counted
from scripts.performance.measured import Measured, Results
from scripts.performance.sections import NO_AIM, Aim, Case, Section, at_least, at_most
from scripts.performance.words import (
    between,
    bullets,
    figure,
    listed,
    paragraph,
    percent,
    ratio,
    seconds,
    shown,
    size,
    table,
    tenths,
    whole,
)

CONTENDERS = {
    "archiver": "the archiver",
    "own_intake": "the archiver, when records are sent to it",
    "streaming": "Structured Streaming in one batch",
    "small_triggers": "Structured Streaming in batches of {batch}",
    "sink": "Iceberg's sink for Kafka Connect",
    "sink_by_schema": "the sink by DynamicMessage",
    "libraries": "the libraries alone",
}
NO_PEERS = ("archiver", "own_intake", "libraries")


def _compared(found: Measured) -> list[str]:
    """The contenders, their input, and what is counted."""
    batch = whole(found.number("contenders.small_triggers.settings.maxOffsetsPerTrigger"))
    interval = found.named("contenders.sink.settings", "iceberg.control.commit.interval-ms").value / 1000
    intro = f"""
        Each contender moves {whole(found.number("records"))} nested orders ({found.number("bytes_per_value"):.0f} bytes) from
        {whole(found.number("partitions"))} partitions of a real Kafka broker into an Iceberg table. All are warmed up, and run in turns on
        the same cores, {whole(found.number("repetitions"))} times:"""
    contenders = bullets(
        [
            "*The archiver*: its daemon mirrors the topic and archives it.",
            """*The archiver, when records are sent to it*: the same daemon, but the records were sent to the archiver and not to a broker.
            They are in intake files when the measurement starts.""",
            f"""*Structured Streaming*: Spark Structured Streaming in one batch, and in batches of {batch}. It decodes with the same library
            as the archiver.""",
            f"""*Iceberg's sink for Kafka Connect*: a Kafka Connect worker with a commit interval of {interval:g} s. Its converter is
            written for this one message, and reads the bytes directly into Connect's structs.""",
            """*The sink by DynamicMessage*: the same sink in a separate run, with a converter that works from the schema, by
            protobuf-java's DynamicMessage.""",
            """*The libraries alone*: not a peer, but the cost of this work in Python without guarantees. One process per core uses the
            Kafka client, ptars and pyarrow, with the options found best for the archiver. It consumes, decodes, encodes again and
            compares, and writes one file. It stores nothing on the way and starts again after a crash. It keeps no key, header, time or
            offset.""",
        ]
    )
    rules = """
        The CPU of all processes of a contender counts, except the broker and the senders. Every table is read back. Its rows, its ids and the
        sums of all columns must match what was sent, else there is no result. The guarantees differ. Only the archiver itself stores records
        durably before they are in the table. Only the archiver checks that each message can be rebuilt byte for byte, and keeps what this
        needs. The peers keep only the columns of the message, and the sink truncates times to milliseconds."""
    return [paragraph(intro), contenders, paragraph(rules)]


def peers(results: Results) -> Section:
    """The archiver compared with others on the same topic."""
    found = results("peers")
    batch = whole(found.number("contenders.small_triggers.settings.maxOffsetsPerTrigger"))
    names = {name: label.format(batch=batch) for name, label in CONTENDERS.items()}
    targets = {
        name: found.number(f"wanted_at_least.{name}")
        for name in names
        if found.has(f"wanted_at_least.{name}")
    }
    own_targets = {name: found.number(f"wanted_at_least_from_own_intake.{name}") for name in targets}
    by_peer = {name: found.spread(f"archiver_by_peer.{name}") for name in names if name not in NO_PEERS}
    own_by_peer = {name: found.spread(f"own_intake_by_peer.{name}") for name in targets}
    daemon, workers, jvm = (
        found.number(f"contenders.archiver.cpu_s.{part}.median") for part in ("program", "workers", "jvm")
    )
    meaning = """
        The next table divides records per core-second by those of each peer. A ratio of 2 means that the same records need half of the peer's
        CPU. The last column has the targets. The libraries alone show how much of a target is possible in Python
        ([performance notes](performance-notes.md#a-refinement-task))."""
    outro = f"""
        Of the archiver's CPU, {figure(daemon)} s are in the daemon that consumes the topic ([mirror](#kafka-mirror)). The workers that refine
        take {figure(workers)} s, and the JVM takes {figure(jvm, 2)} s."""
    own = f"""
        When records are sent to the archiver, it starts with the records in its intake. The peers start with the records in the broker. To
        store the records, sent as Arrow batches, took {figure(found.number("contenders.own_intake.cpu_s_before.median"))} s of CPU in the
        sending process. The column *with the CPU of storing* includes it. The CPU of the broker and its producers counts for no contender."""
    head = [
        "",
        "thousand records per core-second",
        "thousand records per second of elapsed time",
        "from most of the work to the last commit",
        "stored",
    ]
    rows = [[label, *_contender(found.at(f"contenders.{name}"))] for name, label in names.items()]
    parts = [
        *_compared(found),
        table(head, rows),
        paragraph(meaning),
        _relative_to_peers(found, names, targets, own_targets),
        paragraph(outro),
        paragraph(own),
    ]
    aims = [
        Aim(
            "Peers",
            f"records per core-second, relative to {names[name]}: {how}",
            f"at least {least:g} times",
            [at_least(least, ours[name], tenths)],
        )
        for how, ours, least_of in (
            ("mirrored from the same topic", by_peer, targets),
            ("sent to the archiver, storing not counted", own_by_peer, own_targets),
        )
        for name, least in least_of.items()
    ]
    return Section("Peers", [("bench-peers", found)], parts, [*aims, _least_stored(found, by_peer)])


def _relative_to_peers(
    found: Measured, names: dict[str, str], targets: dict[str, float], own_targets: dict[str, float]
) -> str:
    """A table of the archiver and the libraries relative to each peer."""
    targeted = [
        {name: found.spread(f"{which}_by_peer.{name}") for name in targets}
        for which in ("own_intake", "own_intake_with_its_writer", "libraries")
    ]
    rows = [
        [
            names[name],
            shown(found.spread(f"archiver_by_peer.{name}"), tenths),
            *(shown(one[name], tenths) if name in one else "-" for one in targeted),
            f"{targets[name]:g}, {own_targets[name]:g}" if name in targets else "-",
        ]
        for name in names
        if name not in NO_PEERS
    ]
    bound = shown(found.spread("archiver_by_peer.libraries"), ratio)
    head = [
        "records per core-second, relative to",
        "the archiver",
        "the archiver, when records are sent to it",
        "the same, with the CPU of storing",
        "the libraries alone",
        "targets of the archiver, and when records are sent to it",
    ]
    return table(head, [*rows, [names["libraries"], bound, "-", "-", "-", "-"]])


def _least_stored(found: Measured, peers: Iterable[str]) -> Aim:
    ours, *others = (
        median(found.numbers(f"contenders.{name}.stored_bytes")) for name in ("archiver", *peers)
    )
    case = Case(f"{ratio(ours / min(others))} times", reached=ours <= min(others))
    return Aim("Peers", "bytes stored, relative to the peer that stores least", "at most as many", [case])


def _contender(one: Measured) -> list[str]:
    speeds = [shown(one.spread(path).by(1000)) for path in ("records_per_core_second", "records_per_second")]
    late = seconds(one.number("last_commit_after_most_of_the_work_s.median"))
    return [*speeds, late, size(median(one.numbers("stored_bytes")))]


PROFILES = {
    "eager": "[eager settings](operations/freshness.md#eager)",
    "upkeep": "eager settings, cleaning each minute, audits every 20 s",
    "defaults": "the defaults",
}
VISIBLE = {"time until visible, p50": "p50", "p99": "p99", "maximum": "max"}


def freshness(results: Results) -> Section:
    """The time until a record is visible, and the CPU of idle topics."""
    found = results("freshness")
    profiles, target = found.parts("profiles"), found.number("wanted_p99_s")
    intro = f"""
        A real daemon runs with a local folder, SQLite, and a table on a SQL catalog. Another process sends
        {whole(found.number("rate"))} orders per second for {whole(found.number("seconds"))} s through the client library. It sends
        {whole(found.number("batches_per_s"))} batches per second, to {whole(found.number("partitions"))} partitions. A reader loads the
        table with pyiceberg, with a pause of a quarter of a second. A batch is visible when a snapshot has all of it: the bounds of
        `kafka.offset` in the manifests reach its last offset in every partition. With the defaults, `complete_delay_max`
        ({whole(ArchiveSettings().complete_delay_max)} s) determines the wait on any machine. If the longest wait grew from snapshot to
        snapshot, archiving would not keep up."""
    rows = [
        [label, *(seconds(one.number(f"visible_s.{which}")) for one in profiles.values())]
        for label, which in VISIBLE.items()
    ]
    rows += [
        ["growth of a snapshot's longest wait, per minute", *(_slope(one) for one in profiles.values())],
        ["cores in use: daemon, Spark", *(_cores(one) for one in profiles.values())],
    ]
    parts = [paragraph(intro), table(["with", *(PROFILES.get(name, name) for name in profiles)], rows)]
    aims = []
    if "eager" in profiles:
        p99 = profiles["eager"].number("visible_s.p99")
        case = Case(seconds(p99), reached=p99 < target)
        aims.append(
            Aim(
                "Freshness",
                "time until visible, p99, with eager settings",
                f"less than {target:g} s",
                [case],
            )
        )
    if found.has("idle"):
        many, most = (
            found.number("idle.many.cores.all"),
            f"less than {100 * found.number('idle.wanted_cores'):g} %",
        )
        topics = whole(found.number("idle.many.topics"))
        idle = f"""
            A daemon with {topics} topics, a table each and no senders took {percent(many)} of a core in
            {whole(found.number("idle.many.seconds"))} s (target: {most}). A daemon with a single topic took
            {percent(found.number("idle.one.cores.all"))}. The measurement starts after the work of the start, and has
            no job that runs hourly or less often."""
        parts.append(paragraph(idle))
        case = Case(percent(many), reached=many < found.number("idle.wanted_cores"))
        aims.append(Aim("Freshness", f"CPU of {topics} idle topics, share of a core", most, [case]))
    return Section("Freshness", [("bench-freshness", found)], parts, aims)


def _slope(one: Measured) -> str:
    path = "oldest_slope_s_per_minute"
    return f"{one.number(path):.2f} s" if one.has(path) else "too few snapshots"


def _cores(one: Measured) -> str:
    daemon, together = one.number("cores.daemon"), one.number("cores.all")
    return f"{daemon:.2f}, {together - daemon:.2f}"


STEPS = {
    "prepare": "prepare: check tables and schemas",
    "plan": "plan",
    "refine": "refine",
    "commit": "commit",
}


def partitions(results: Results) -> Section:
    """Many topics, and one topic with many partitions. A run may have only some of the three."""
    found = results("partitions")
    parts, aims = [], list[Aim]()
    if found.has("many"):
        target, slowest = found.number("wanted_plan_s"), found.number("many.plan_s_max")
        parts += _many(found.at("many"), target)
        case = Case(seconds(slowest), reached=slowest < target)
        aims.append(
            Aim("Many partitions", "planning a round, the slowest", f"less than {target:g} s", [case])
        )
    if found.has("requests"):
        parts.append(_requests(found.at("requests")))
    for part in ("one_topic", "one_topic_large"):
        if found.has(part):
            one = found.at(part)
            parts.append(_one_topic(one))
            aims.append(_one_topic_aim(one))
    return Section("Many partitions", [("bench-partitions", found)], parts, aims)


def _many(many: Measured, wanted_plan_s: float) -> list[str]:
    """One daemon with many topics."""
    oldest, most = (
        max(pair.number("1") for pair in many.each(path)) for path in ("oldest_s", "waiting_records")
    )
    left, sent = many.each("waiting_records")[-1].number("1"), many.number("sent.records")
    intro = f"""
        {whole(many.number("topics"))} topics have {whole(many.number("partitions"))} partitions and a table each. Every partition receives
        one order per second, for {whole(many.number("sent.seconds"))} s. This is one run with the default settings, a local folder and
        SQLite. All topics begin at the same time, so all are due at once after `complete_delay_max`
        ({whole(ArchiveSettings().complete_delay_max)} s). Then the age of the oldest record grows until rounds have archived every topic.
        At this rate a flush holds at most one record of a partition. So each second leaves one segment with one record per partition
        ([performance notes](performance-notes.md#planning-and-segments), decision
        [0053](decisions/0053-a-round-takes-whole-topics.md)). Steps are those of rounds that refined for a second or more. If several
        rounds ended between two polls of the metrics, their mean is shown."""
    daemon = many.at("memory.daemon")
    rows = [
        ["age of the oldest record that is in no table, maximum", f"{whole(oldest)} s"],
        [
            "records that are in no table: maximum, and when sending ended",
            f"{whole(most)} and {whole(left)} of {whole(sent)}",
        ],
        [
            "from the end of sending until all records are in their tables",
            f"{whole(many.number('in_tables_after_the_end_s'))} s",
        ],
        ["commits, each for one table in one round", whole(many.number("commits.count"))],
        ["time of a commit", seconds(many.number("commits.seconds_each"))],
        ["memory of the daemon, maximum", f"{whole(daemon.number('max_mb'))} MB"],
    ]
    if daemon.has("max_mb_by_minute"):
        minutes = daemon.numbers("max_mb_by_minute")
        rows.append(
            [
                "maximum in each minute of the second half",
                f"{between(minutes[len(minutes) // 2 :], whole)} MB",
            ]
        )
    else:
        rows.append(
            [
                "growth in a minute of the second half",
                f"{whole(daemon.number('mb_per_minute_of_second_half'))} MB",
            ]
        )
    rounds = [one for one in many.each("round_steps_s") if one.number("refine") >= 1]
    for step, label in STEPS.items() if rounds else ():
        limit = f" (target: less than {wanted_plan_s:g} s)" if step == "plan" else ""
        rows.append([f"{label}{limit}", between([one.number(step) for one in rounds], seconds)])
    return [paragraph(intro), table(["one run", ""], rows)]


def _requests(asked: Measured) -> str:
    kinds = listed([f"{whole(asked.number(kind))} {kind}" for kind in ("PUT", "POST", "GET", "HEAD", "LIST")])
    return paragraph(f"""
        Requests to a bucket were counted for {whole(asked.number("topics"))} of these topics, until all records were in their tables. There
        were {whole(asked.number("requests"))} requests for {whole(asked.number("records"))} records: {kinds}. They uploaded
        {size(asked.number("bytes_in"))} and downloaded {size(asked.number("bytes_out"))} for {size(asked.number("raw_bytes"))} of keys and
        values. Extrapolated to a GiB this is {figure(asked.number("per_gib.requests"))} requests, because one record per second fills no
        file. At higher rates the figures of [operations/s3.md](operations/s3.md#requests) apply.""")


def _one_topic_aim(one: Measured) -> Aim:
    few, many = (whole(value) for value in one.numbers("partitions"))
    most = one.number("wanted_ratio")
    cases = [
        at_most(most, one.spread(f"slower_{path}"), name=name)
        for path, name in (("by_the_clock", "elapsed time"), ("by_cpu", "CPU"))
    ]
    what = f"{many} partitions of a topic, relative to {few} with the same {whole(one.number('records'))} records"
    return Aim("Many partitions", what, f"at most {most:g} times", cases)


def _one_topic(one: Measured) -> str:
    few, many = one.numbers("partitions")
    record_s = 1 / one.number(f"records_per_core_second_{few:.0f}.median")
    repetitions = counted(round(one.number("repetitions")), "repetition")
    return paragraph(f"""
        One topic with {whole(one.number("records"))} nested orders is refined with {whole(many)} partitions and with {whole(few)}. Both run
        on the same session in turns, {repetitions}. With {whole(many)} partitions a record takes
        {shown(one.spread("slower_by_cpu"), ratio)} times the CPU and {shown(one.spread("slower_by_the_clock"), ratio)} times the elapsed
        time. The target is at most {one.number("wanted_ratio"):g}. Each further archive takes {shown(one.spread("archive_ms"))} ms of CPU in
        addition to that of its records. In large archives a record takes {seconds(record_s)}. For comparison, pyarrow and ptars alone write
        the rows in order into as many files with fsync, without guarantees. For {whole(many)} files they take
        {shown(one.spread("libraries_slower_by_cpu"), ratio)} times the CPU of {whole(few)} files. Each further file takes
        {shown(one.spread("libraries_file_ms"))} ms.""")


ENGINES = {"duckdb": "DuckDB", "spark": "Spark"}


def compaction(results: Results) -> Section:
    """The effect of merging archives on queries."""
    found = results("compaction")
    before, after, cpu = found.at("before"), found.at("after"), found.number("cpu_seconds")
    times = {
        engine: [median(found.numbers(f"queries.{name}.{when}_seconds")) for when in ("before", "after")]
        for name, engine in ENGINES.items()
    }
    intro = f"""
        A table holds {whole(found.number("records"))} nested orders of one day in {whole(before.number("archives"))} small archives. Two
        days later `archiver clean` merges them with `cleanup.compact_bytes: 128MiB` ([compaction](operations/compaction.md)). DuckDB and
        Spark's own Parquet reader query the files of the newest snapshot. They read all rows of one column, then those of a range of
        offsets. Each query runs {len(found.each("queries.duckdb.before_seconds"))} times, after a first run that is not counted. The answers
        must be the same before and after, and the audit must be valid, else there is no result. Cleaning took {figure(cpu, 2)} CPU seconds.
        That is {figure(found.number("records_per_cpu_second"))} records per CPU second, each of them rebuilt twice, and
        {figure(1000 * cpu / before.number("archives"), 2)} ms for each old archive."""
    rows = [
        [
            "archives",
            *(whole(one.number("archives")) for one in (before, after)),
            _by(before.number("archives"), after.number("archives")),
        ],
        [
            "bytes",
            *(size(one.number("bytes")) for one in (before, after)),
            _by(before.number("bytes"), after.number("bytes")),
        ],
        *([f"query by {engine}, median", *map(seconds, both), _by(*both)] for engine, both in times.items()),
    ]
    cases = [Case(f"{_by(*both)} times", None, engine) for engine, both in times.items()]
    aim = Aim(
        "Compaction",
        "query time before a day's archives are merged, relative to the time after",
        NO_AIM,
        cases,
    )
    head = ["", "before", "after", "before / after"]
    return Section("Compaction", [("bench-compaction", found)], [paragraph(intro), table(head, rows)], [aim])


def _by(before: float, after: float) -> str:
    return ratio(before / after)
