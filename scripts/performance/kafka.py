"""Sections about the Kafka listener: compared with Apache Kafka's broker, its fetches, and record batches."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.performance.measured import Measured, Results
from scripts.performance.sections import Aim, Section, at_least
from scripts.performance.words import figure, paragraph, ratio, shown, table, tenths, whole

THOUSAND = 1000


def listener(results: Results) -> Section:
    """The listener compared with the broker of Apache Kafka."""
    found = results("kafka")
    cases = found.parts("cases")
    intro = f"""
        This listener and Apache Kafka's broker run at the same time on the same cores, each with a local disk. librdkafka produces
        {whole(found.number("batches"))} batches of {whole(found.number("batch_records"))} records of
        {whole(found.number("record_bytes"))} bytes to both in turns, with `acks=all`. Then one consumer reads them back. Only the CPU time
        of the server's process is counted, in {whole(found.number("repetitions"))} repetitions. A ratio is the CPU time of the broker
        divided by that of the listener, in the same repetition. The broker has one replica and does not sync its files, its default. The
        listener syncs each intake file and each entry of the log before it acknowledges, with `intake.delay_max: 200ms`. This delay
        dominates its acknowledgement times. The records are fetched from intake files; the next section is about archives."""
    head = [
        "partitions",
        "connections",
        "codec",
        "listener, MB per core-second",
        "Kafka, MB per core-second",
        "produce ratio",
        "fetch ratio",
    ]
    times = ["partitions", "connections", "codec", "listener p50", "listener p99", "Kafka p50", "Kafka p99"]
    after = """
        Times from the last record of a batch to its acknowledgement, in ms. A client has at most five requests on their way in a
        connection, so with one connection most batches wait in the client for an acknowledgement of others:"""
    parts = [
        paragraph(intro),
        table(head, [[*_load(name), *_speeds(one)] for name, one in cases.items()]),
        paragraph(after),
        table(times, [[*_load(name), *_times(one)] for name, one in cases.items()]),
    ]
    aims = [
        Aim(
            "Kafka listener",
            f"bytes {done} per core-second of the server, relative to Apache Kafka's broker, lowest of {len(cases)} loads",
            f"at least {found.number(f'wanted_{what}_ratio'):g} times",
            [at_least(found.number(f"wanted_{what}_ratio"), _lowest(cases, what).spread(f"{what}_ratio"))],
        )
        for what, done in (("produce", "produced"), ("fetch", "fetched"))
    ]
    return Section("The Kafka listener and Apache Kafka", [("bench-kafka", found)], parts, aims)


def _lowest(cases: Mapping[str, Measured], what: str) -> Measured:
    return min(cases.values(), key=lambda one: one.number(f"{what}_ratio.median"))


def _load(name: str) -> list[str]:
    """Partitions, connections and codec of a case."""
    partitions, connections, codec = name.split("-")
    return [whole(float(partitions[1:])), connections[1:], codec]


def _speeds(one: Measured) -> list[str]:
    rates = [shown(one.spread(f"{who}.produce_mb_per_core_second"), figure) for who in ("archiver", "kafka")]
    return [*rates, *(shown(one.spread(f"{what}_ratio"), ratio) for what in ("produce", "fetch"))]


def _times(one: Measured) -> list[str]:
    return [
        tenths(one.number(f"{who}.acknowledgement_ms.{share}"))
        for who in ("archiver", "kafka")
        for share in ("p50", "p99")
    ]


def fetch(results: Results) -> Section:
    """What fetches from intake and from archives cost."""
    found = results("fetch")
    target = found.number("wanted_records_per_core_second")
    intro = f"""
        {whole(found.number("records"))} nested messages in one partition are read in order, as a consumer's fetches of
        {whole(found.number("fetch_bytes"))} bytes read them. *Archive* includes the verification of the archive, which a process does
        once. *Verified* is an archive that was verified before. With a schema, each value is encoded again from columns and is equal byte
        for byte; *raw* archives keep the bytes. The batches are encoded but not sent. {whole(found.number("repetitions"))} repetitions run
        in turns."""
    names = {"nested": "nested, with a schema", "raw": "raw"}
    rows = [
        [
            names[name],
            *(shown(one.spread(where).by(THOUSAND)) for where in ("intake", "archive", "verified")),
        ]
        for name, one in found.parts("cases").items()
    ]
    aim = Aim(
        "Kafka fetch",
        "records per core-second rebuilt from an archive",
        f"at least {whole(target)}",
        [
            at_least(target, one.spread(where), whole, f"{name} {text}")
            for name, one in found.parts("cases").items()
            for where, text in (("archive", "with verification"), ("verified", "verified before"))
        ],
    )
    head = ["thousand records per core-second", "intake", "archive", "verified"]
    return Section(
        "Fetches of Kafka consumers", [("bench-fetch", found)], [paragraph(intro), table(head, rows)], [aim]
    )


def workers(results: Results) -> Section:
    """The CPU of a daemon by its number of intake workers."""
    found = results("workers")
    cases, limits = found.parts("cases"), found.at("limits")
    many = results("log").at("several_writers.4")
    most = whole(limits.number("workers"))
    intro = f"""
        Daemons with 1, 2 and 4 `intake.workers` run at the same time on the same two cores. A client program produces
        {whole(found.number("batches"))} batches of {whole(found.number("batch_records"))} records of {whole(found.number("record_bytes"))}
        bytes to each in turns, and reads each of them once, {whole(found.number("repetitions"))} times. The load has 100 partitions and 10 connections.
        The CPU of the daemon and of its workers counts. A ratio divides it by that of the daemon without workers, in the same repetition.
        The part of the daemon is what its own process takes; with workers, that is accepting, relayed requests and the log. The load is the same for all, so with more workers the flushes are smaller and more, and what each costs is paid more
        often. At the end
        each topic is read from its beginning: all records are there once, without a gap between offsets."""
    head = [
        "codec",
        "workers",
        "produced, MB per core-second",
        "produce, CPU ratio",
        "fetch, CPU ratio",
        "part of the daemon: produce",
        "fetch",
        "p99 of an acknowledgement, ms",
    ]
    rows = [
        [
            name.rpartition("-")[2],
            count,
            shown(one.spread("produce_mb_per_core_second")),
            shown(one.spread("produce_cpu_ratio")),
            shown(one.spread("fetch_cpu_ratio")),
            shown(one.spread("produce_share_of_daemon")),
            shown(one.spread("fetch_share_of_daemon")),
            shown(one.spread("p99_ms")),
        ]
        for name, case in cases.items()
        for count, one in case.parts("workers").items()
    ]
    after = f"""
        Two cores cannot show the throughput of many workers. This shows what limits their number. Every process reads every entry of the log,
        which takes {shown(limits.spread("follow_ms"))} ms of CPU for an entry of these loads. An idle worker takes
        {shown(limits.spread("idle_cores"))} of a core. A busy worker appends once in `intake.delay_max` (200 ms), so {most} workers append
        {whole(limits.number("entries_per_second"))} entries a second. By calculation, {most} workers and the daemon take
        {figure(limits.number("cores_to_follow"))} cores to read these entries. One process at a time appends:
        {whole(many.number("writers"))} processes with that delay were measured to append
        {whole(many.number("appends_per_second.median"))} entries a second to SQLite, on two cores ([the log](#the-log)). A longer
        `intake.delay_max` makes entries fewer."""
    return Section(
        "Intake workers",
        [("bench-workers", found)],
        [paragraph(intro), table(head, rows), paragraph(after)],
    )


def record_batch(results: Results) -> Section:
    """Record batches decoded into columns and encoded from them."""
    found = results("record_batch")
    times = found.at("us_per_record")
    intro = f"""
        Batches of {whole(found.number("records_per_batch"))} records of 139 bytes are checked, as before they are stored, become Arrow
        columns and are encoded again, in {whole(found.number("repetitions"))} repetitions. Checking and decoding include the header and its
        checksum. Many batches are read together, because numpy then works on more records at once. aiokafka's reader with conversion to the same columns takes
        {shown(times.spread("aiokafka"))} µs a record without headers, and {shown(times.spread("aiokafka_headers"))} µs with two headers.
        Figures are µs of CPU per record."""
    rows = [
        [
            f"{what}, {codec}, {text}",
            *(shown(times.spread(f"{what}_{codec}_{count}{suffix}")) for count in (1, 16, 512)),
        ]
        for what in ("check", "decode")
        for suffix, text in (("", "no headers"), ("_headers", "two headers"))
        for codec in ("none", "lz4", "zstd")
    ]
    rows += [
        [f"encode, {text}", "", shown(times.spread(f"encode{suffix}")), ""]
        for suffix, text in (("", "no headers"), ("_headers", "two headers"))
    ]
    head = ["µs per record", "1 batch", "16 batches", "512 batches"]
    return Section(
        "Kafka record batches", [("bench-record-batch", found)], [paragraph(intro), table(head, rows)]
    )
