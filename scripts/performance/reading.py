"""What users see: peers on the same topic, how fresh tables are, many partitions, and compaction."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from archiver.config.topics import ArchiveSettings
from archiver.runtime.text import counted
from scripts.performance.measured import Measured, Results
from scripts.performance.sections import NO_AIM, Aim, Case, Section, at_least, at_most
from scripts.performance.words import (
    between,
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


def _compared(found: Measured) -> str:
    """Who ran, on what, and what is counted."""
    batch = whole(found.number("contenders.small_triggers.settings.maxOffsetsPerTrigger"))
    interval = found.named("contenders.sink.settings", "iceberg.control.commit.interval-ms").value / 1000
    return f"""
        {whole(found.number("records"))} nested orders ({found.number("bytes_per_value"):.0f} bytes) in
        {whole(found.number("partitions"))} partitions of a real Kafka broker go into an Iceberg table, warm, in turns on the same
        cores, {whole(found.number("repetitions"))} times: by the archiver's daemon, which mirrors the topic; by the same daemon where the
        records were sent to the archiver and not to a broker, so that they are in intake files when it begins; by Spark Structured
        Streaming in one batch, and in batches of {batch}; and by Iceberg's sink in a Kafka Connect worker with a commit interval of
        {interval:g} s. The CPU of all processes of each counts, except the broker and the senders. Every table is
        read back: rows, ids, and the sums of all columns are those that were sent, or there is no result. Of these the archiver alone
        takes records in durably by itself, checks that each message can be rebuilt byte for byte, and keeps what it takes for that. The
        peers keep the message's columns only; the sink cuts times to milliseconds. Streaming decodes with the same library as the
        archiver. The sink has a converter written for this one message, which reads its bytes straight into Connect's structs, and in a
        run of its own one that works from the schema, by protobuf-java's DynamicMessage. *The libraries alone* are no peer: a process
        per core with the Kafka client, ptars and pyarrow consumes, decodes, encodes again and compares, and writes one file, with what
        was found best for the archiver. They store nothing on the way, start again after a crash, and keep no key, header, time or
        offset: they tell what is left of this work in Python without promises."""


def peers(results: Results) -> Section:
    """The archiver compared with others on the same topic."""
    found = results("peers")
    batch = whole(found.number("contenders.small_triggers.settings.maxOffsetsPerTrigger"))
    names = {name: label.format(batch=batch) for name, label in CONTENDERS.items()}
    wanted = {
        name: found.number(f"wanted_at_least.{name}")
        for name in names
        if found.has(f"wanted_at_least.{name}")
    }
    by_peer = {name: found.spread(f"archiver_by_peer.{name}") for name in names if name not in NO_PEERS}
    limits = {name: f", target: {wanted[name]:g}" if name in wanted else "" for name in by_peer}
    told = [
        f"{shown(spread, tenths)} times that of {names[name]}{limits[name]}"
        for name, spread in by_peer.items()
    ]
    daemon, workers, jvm = (
        found.number(f"contenders.archiver.cpu_s.{part}.median") for part in ("program", "workers", "jvm")
    )
    outro = f"""
        For a core-second the archiver's work is {"; ".join(told)}. Of its CPU {figure(daemon)} s are of the daemon that consumes the
        topic ([mirror](#kafka-mirror)), {figure(workers)} s of the workers that refine, and {figure(jvm, 2)} s of the JVM."""
    own_by_peer, with_writer = (
        {name: found.spread(f"{which}_by_peer.{name}") for name in wanted}
        for which in ("own_intake", "own_intake_with_its_writer")
    )
    times = [
        f"{shown(spread, tenths)} times that of {names[name]}{limits[name]}"
        for name, spread in own_by_peer.items()
    ]
    own = f"""
        When records are sent to the archiver in the place of a broker, it begins with what is in its intake, as the peers begin with what
        the broker has: its work for a core-second is {" and ".join(times)}. To store the records, sent as Arrow batches, took
        {figure(found.number("contenders.own_intake.cpu_s_before.median"))} s of CPU of who sent them. What the broker and its producers
        took is counted for neither; with the archiver's own counted the ratios are
        {" and ".join(shown(spread, tenths) for spread in with_writer.values())}."""
    most = [
        f"{shown(found.spread(f'libraries_by_peer.{name}'), tenths)} times the work of {names[name]} "
        f"(target of the archiver: {least:g})"
        for name, least in wanted.items()
    ]
    limit = f"""
        For a core-second the libraries alone do {" and ".join(most)}; the archiver does
        {shown(found.spread("archiver_by_peer.libraries"), ratio)} times the work of the libraries
        ([performance notes](performance-notes.md#a-refinement-task))."""
    head = [
        "",
        "thousand records per core-second",
        "by the clock, thousand a second",
        "last commit after most of the work",
        "stored",
    ]
    rows = [[label, *_contender(found.at(f"contenders.{name}"))] for name, label in names.items()]
    parts = [paragraph(_compared(found)), table(head, rows), *map(paragraph, (outro, own, limit))]
    aims = [
        Aim(
            "Peers",
            f"records per core-second, by those of {names[name]}: {how}",
            f"at least {least:g} times",
            [at_least(least, ours[name], tenths)],
        )
        for how, ours in (
            ("mirrored from the same topic", by_peer),
            ("sent to the archiver, storing not counted", own_by_peer),
        )
        for name, least in wanted.items()
    ]
    return Section("Peers", [("bench-peers", found)], parts, [*aims, _least_stored(found, by_peer)])


def _least_stored(found: Measured, peers: Iterable[str]) -> Aim:
    ours, *others = (
        median(found.numbers(f"contenders.{name}.stored_bytes")) for name in ("archiver", *peers)
    )
    case = Case(f"{ratio(ours / min(others))} times", reached=ours <= min(others))
    return Aim("Peers", "bytes stored, by those of the peer that stores least", "at most as many", [case])


def _contender(one: Measured) -> list[str]:
    speeds = [shown(one.spread(path).by(1000)) for path in ("records_per_core_second", "records_per_second")]
    late = seconds(one.number("last_commit_after_most_of_the_work_s.median"))
    return [*speeds, late, size(median(one.numbers("stored_bytes")))]


PROFILES = {
    "eager": "[eager settings](operations/freshness.md#eager)",
    "upkeep": "eager settings, cleaning each minute, audits every 20 s",
    "defaults": "the defaults",
}
VISIBLE = {"until visible, in half of the cases": "p50", "in 99 of 100": "p99", "at most": "max"}


def freshness(results: Results) -> Section:
    """How long a record waits, and what idle topics cost."""
    found = results("freshness")
    profiles, wanted = found.parts("profiles"), found.number("wanted_p99_s")
    intro = f"""
        A real daemon with a local folder, SQLite, and a table on a SQL catalog. Another process sends
        {whole(found.number("rate"))} orders a second for {whole(found.number("seconds"))} s through the library, in
        {whole(found.number("batches_per_s"))} batches a second, to {whole(found.number("partitions"))} partitions; a reader loads the
        table by pyiceberg with a pause of a quarter of a second, and a batch counts as visible when the bounds of `kafka.offset` in a
        snapshot's manifests have reached its last offset in every partition. With the defaults `complete_delay_max`
        ({whole(ArchiveSettings().complete_delay_max)} s) is the wait, on any machine. A longest wait that grows from snapshot to
        snapshot would say that archiving does not keep up."""
    rows = [
        [label, *(seconds(one.number(f"visible_s.{which}")) for one in profiles.values())]
        for label, which in VISIBLE.items()
    ]
    rows += [
        ["the longest wait of a snapshot grows in a minute by", *(_slope(one) for one in profiles.values())],
        ["cores in use: daemon, Spark", *(_cores(one) for one in profiles.values())],
    ]
    parts = [paragraph(intro), table(["with", *(PROFILES.get(name, name) for name in profiles)], rows)]
    aims = []
    if "eager" in profiles:
        p99 = profiles["eager"].number("visible_s.p99")
        case = Case(seconds(p99), reached=p99 < wanted)
        aims.append(
            Aim(
                "Freshness",
                "visible in 99 of 100 cases, with eager settings",
                f"less than {wanted:g} s",
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
            {whole(found.number("idle.many.seconds"))} s (target: {most}), and one with a single topic
            {percent(found.number("idle.one.cores.all"))}; what comes with a start, and every hour or less often, was over."""
        parts.append(paragraph(idle))
        case = Case(percent(many), reached=many < found.number("idle.wanted_cores"))
        aims.append(Aim("Freshness", f"CPU of {topics} idle topics, of a core", most, [case]))
    return Section("Freshness", [("bench-freshness", found)], parts, aims)


def _slope(one: Measured) -> str:
    path = "oldest_slope_s_per_minute"
    return f"{one.number(path):.2f} s" if one.has(path) else "too few snapshots"


def _cores(one: Measured) -> str:
    daemon, together = one.number("cores.daemon"), one.number("cores.all")
    return f"{daemon:.2f}, {together - daemon:.2f}"


STEPS = {
    "prepare": "prepare: tables and schemas are checked",
    "plan": "plan",
    "refine": "refine",
    "commit": "commit",
}


def partitions(results: Results) -> Section:
    """Many topics, and one topic with many partitions. A run may have only some of the three."""
    found = results("partitions")
    parts, aims = [], list[Aim]()
    if found.has("many"):
        wanted, slowest = found.number("wanted_plan_s"), found.number("many.plan_s_max")
        parts += _many(found.at("many"), wanted)
        case = Case(seconds(slowest), reached=slowest < wanted)
        aims.append(
            Aim("Many partitions", "planning a round, the slowest", f"less than {wanted:g} s", [case])
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
    """A daemon and its topics."""
    oldest, most = (
        max(pair.number("1") for pair in many.each(path)) for path in ("oldest_s", "waiting_records")
    )
    left, sent = many.each("waiting_records")[-1].number("1"), many.number("sent.records")
    intro = f"""
        {whole(many.number("topics"))} topics with {whole(many.number("partitions"))} partitions and a table each, an order a second to
        every partition, for {whole(many.number("sent.seconds"))} s; one run with the defaults, a local folder and SQLite. All topics
        begin at the same time, so after `complete_delay_max` ({whole(ArchiveSettings().complete_delay_max)} s) everything is due at
        once, and the oldest record gets older until rounds have been through all. What each second of that load leaves is a segment of
        one record for every partition, because every flush meets each once at most
        ([performance notes](performance-notes.md#planning-and-segments), decision
        [0053](decisions/0053-a-round-takes-whole-topics.md)). Steps are those of rounds that refined for a second or more; where
        several were between two polls of the metrics, their mean."""
    daemon = many.at("memory.daemon")
    rows = [
        ["the oldest record without a table, at most", f"{whole(oldest)} s"],
        [
            "records without a table, at most, and when sending ended",
            f"{whole(most)} and {whole(left)} of {whole(sent)}",
        ],
        ["the rest is in its tables after", f"{whole(many.number('in_tables_after_the_end_s'))} s"],
        ["commits, each of one table in one round", whole(many.number("commits.count"))],
        ["a commit", seconds(many.number("commits.seconds_each"))],
        ["memory of the daemon, at most", f"{whole(daemon.number('max_mb'))} MB"],
    ]
    if daemon.has("max_mb_by_minute"):
        minutes = daemon.numbers("max_mb_by_minute")
        rows.append(
            [
                "most of it in each minute of the second half",
                f"{between(minutes[len(minutes) // 2 :], whole)} MB",
            ]
        )
    else:
        rows.append(
            [
                "grows in a minute of the second half by",
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
        Requests to a bucket, counted, for {whole(asked.number("topics"))} of these topics, until all is in its tables:
        {whole(asked.number("requests"))} for {whole(asked.number("records"))} records, of which {kinds};
        {size(asked.number("bytes_in"))} went in and {size(asked.number("bytes_out"))} came out for {size(asked.number("raw_bytes"))} of
        keys and values. For a GiB that would be {figure(asked.number("per_gib.requests"))} requests: a record a second is too little to
        fill anything. With more at a time the figures are those of [operations/s3.md](operations/s3.md#requests).""")


def _one_topic_aim(one: Measured) -> Aim:
    few, many = (whole(value) for value in one.numbers("partitions"))
    most = one.number("wanted_ratio")
    cases = [
        at_most(most, one.spread(f"slower_{path}"), name=name)
        for path, name in (("by_the_clock", "by the clock"), ("by_cpu", "by CPU"))
    ]
    what = f"{many} partitions of a topic, by {few} with the same {whole(one.number('records'))} records"
    return Aim("Many partitions", what, f"at most {most:g} times", cases)


def _one_topic(one: Measured) -> str:
    few, many = one.numbers("partitions")
    record_s = 1 / one.number(f"records_per_core_second_{few:.0f}.median")
    repetitions = counted(round(one.number("repetitions")), "repetition")
    return paragraph(f"""
        One topic, {whole(one.number("records"))} nested orders, {whole(many)} partitions compared with {whole(few)}, refined on the same
        session in turns, {repetitions}: {shown(one.spread("slower_by_cpu"), ratio)} times the CPU for a record and
        {shown(one.spread("slower_by_the_clock"), ratio)} times by the clock; the target is at most {one.number("wanted_ratio"):g}. Each
        further archive takes {shown(one.spread("archive_ms"))} ms of CPU beyond what its records take in large ones, which is
        {seconds(record_s)} each. pyarrow and ptars alone, which write as many synced files of the rows as they come and promise nothing,
        take for {whole(many)} files {shown(one.spread("libraries_slower_by_cpu"), ratio)} times the CPU that they take for {whole(few)},
        {shown(one.spread("libraries_file_ms"))} ms for each further one.""")


ENGINES = {"duckdb": "DuckDB", "spark": "Spark"}


def compaction(results: Results) -> Section:
    """What merging brings queries."""
    found = results("compaction")
    before, after, cpu = found.at("before"), found.at("after"), found.number("cpu_seconds")
    times = {
        engine: [median(found.numbers(f"queries.{name}.{when}_seconds")) for when in ("before", "after")]
        for name, engine in ENGINES.items()
    }
    intro = f"""
        {whole(found.number("records"))} nested orders in a table of {whole(before.number("archives"))} small archives, all of one day,
        and `archiver clean` with `cleanup.compact_bytes: 128MiB` two days later ([compaction](operations/compaction.md)). Queries by
        DuckDB and by Spark's own Parquet reader, over the files that the newest snapshot names: all rows of one column, then those of a
        range of offsets; {len(found.each("queries.duckdb.before_seconds"))} times each after a first one. The answers are the same
        before and after, and the audit is valid, or there is no result. Cleaning took {figure(cpu, 2)} CPU seconds:
        {figure(found.number("records_per_cpu_second"))} records a second, of which each was rebuilt twice;
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
        "Compaction", "time of queries before a day's archives are merged, by that after it", NO_AIM, cases
    )
    head = ["", "before", "after", "before by after"]
    return Section("Compaction", [("bench-compaction", found)], [paragraph(intro), table(head, rows)], [aim])


def _by(before: float, after: float) -> str:
    return ratio(before / after)
