"""Taking records in: the writer, partitions, the time to an acknowledgement, and Kafka."""

from __future__ import annotations

from scripts.performance.measured import Measured, Results
from scripts.performance.sections import Aim, Case, Section, at_least
from scripts.performance.words import (
    between,
    figure,
    milliseconds,
    paragraph,
    percent,
    ratio,
    shown,
    table,
    whole,
)


def writer(results: Results) -> Section:
    """Compared with pyarrow alone."""
    found = results("writer")
    speed, wanted = found.spread("writer_mb_per_core_second"), found.number("wanted_mb_per_core_second")
    text = f"""
        {whole(found.number("records"))} records of {found.number("bytes_per_record"):.0f} bytes, half random and half repeating, through
        `send_batch` into a local folder, {whole(found.number("partitions"))} partitions, with SQLite as the log; for comparison pyarrow writes
        the same columns as one plain Parquet file with fsync. In {whole(found.number("repetitions"))} repetitions {shown(speed)} MB of
        record bytes per CPU second (target: {wanted:g}), pyarrow alone {shown(found.spread("plain_pyarrow_mb_per_core_second"))}; the
        ratio is {shown(found.spread("ratio_writer_to_plain"), ratio)}. The writer's additional work is partitioning, sorting, and
        gathering the rows by partition."""
    aim = Aim(
        "Intake", "MB per CPU second of the writer", f"at least {wanted:g}", [at_least(wanted, speed, figure)]
    )
    return Section("Intake writer", [("bench-writer", found)], [paragraph(text)], [aim])


FULL_PARTITIONS = 1000
"""Over so many a full flush is to keep its speed."""


def partitions(results: Results) -> Section:
    """One flush over few partitions and over many."""
    found = results("intake")
    cases, file = found.each("partitions"), found.at("file_bytes")
    intro = f"""
        The records of *Intake writer*, spread evenly over the partitions of a topic, one flush at a time from `send_batch` to the
        acknowledgement, fsync and log included; {whole(found.number("repetitions"))} repetitions. *Falls by* is the time by that of the
        fewest partitions in the same repetition. By the first and the last line of each size a segment costs
        {between(_segment_us(cases), whole)} µs, independent of its size. A flush whose entry would be over `log.entry_bytes_max` makes several
        files. An intake file of {whole(file.number("segments"))} segments of {whole(file.number("records_per_segment"))} records of random
        bytes, which nothing compresses, takes {file.number("random.ratio"):.3f} of the raw bytes; with values half of which repeat,
        {file.number("half_repeating.ratio"):.2f}."""
    rows = [
        [f"{whole(one.number('records_per_flush'))} ({one.number('raw_mb_per_flush'):.1f} MB)", *_cells(one)]
        for one in cases
    ]
    head = ["records in a flush", "partitions", "files", "MB/s", "falls by", "in CPU time"]
    parts = [paragraph(intro), table(head, rows)]
    return Section("Intake at many partitions", [("bench-intake", found)], parts, _aims(found))


def _aims(found: Measured) -> list[Aim]:
    cases, most = found.each("partitions"), found.number("wanted_fall_below")
    full = max(one.number("records_per_flush") for one in cases)
    judged = [
        one
        for one in cases
        if (one.number("records_per_flush"), one.number("partitions")) == (full, FULL_PARTITIONS)
    ]
    falls = [
        Case(shown(one.spread("falls_by"), ratio), one.number("falls_by.median") < most) for one in judged
    ]
    stored, limit = found.number("file_bytes.random.ratio"), found.number("file_bytes.wanted_below")
    return [
        Aim(
            "Intake",
            f"time of a full flush over {whole(FULL_PARTITIONS)} partitions, by few",
            f"below {most:g} times",
            falls,
        ),
        Aim(
            "Intake",
            "bytes of a file of random records, by raw bytes",
            f"below {limit:g} times",
            [Case(f"{stored:.3f}", stored < limit)],
        ),
    ]


def _cells(one: Measured) -> list[str]:
    falls = [shown(one.spread(path), ratio) for path in ("falls_by", "falls_by_in_cpu")]
    return [
        whole(one.number("partitions")),
        whole(one.number("files_per_flush")),
        shown(one.spread("mb_per_second")),
        *falls,
    ]


def _segment_us(cases: list[Measured]) -> list[float]:
    """What each further segment takes, by flushes of the same size."""
    by_size: dict[float, list[Measured]] = {}
    for one in cases:
        by_size.setdefault(one.number("records_per_flush"), []).append(one)
    found = []
    for first, *_, last in by_size.values():
        few_s, many_s = (
            one.number("raw_mb_per_flush") / one.number("mb_per_second.median") for one in (first, last)
        )
        found.append(1e6 * (many_s - few_s) / (last.number("partitions") - first.number("partitions")))
    return found


def acknowledgement(results: Results) -> Section:
    """What one sender waits."""
    found = results("intake")
    cases = found.each("acknowledgement")
    intro = f"""
        One sender that waits for each acknowledgement; a local folder, SQLite; {whole(found.number("repetitions"))} repetitions,
        {whole(cases[0].number("sends"))} sends in all. *Bare* is a new file of as many bytes with fsync of file and folder, and as many
        bytes appended to a file with fdatasync, in turns with ours. Shares are of the mean; *before the upload* is the wait for company
        (`delay_max`), a change of thread, and encoding."""
    head = [
        "records",
        "`delay_max`",
        "p50",
        "p99",
        "bare p50",
        "before the upload",
        "upload",
        "append",
        "rest",
    ]
    parts = [paragraph(intro), table(head, [_acknowledged(one) for one in cases])]
    return Section("Time to an acknowledgement", [("bench-intake", found)], parts)


def _acknowledged(one: Measured) -> list[str]:
    delay = one.number("delay_max_ms")
    times = [milliseconds(one.number(f"{path}.median")) for path in ("p99_ms", "bare_p50_ms")]
    shares = [
        percent(one.number(f"share_{name}.median")) for name in ("before_upload", "upload", "append", "rest")
    ]
    told = f"{delay:g} ms" if delay else "0"
    return [whole(one.number("records")), told, shown(one.spread("p50_ms"), milliseconds), *times, *shares]


def mirror(results: Results) -> Section:
    """Compared with a bare consumer."""
    found = results("mirror")
    ratios, wanted = (
        {"CPU": found.spread("ratio_of_core_seconds"), "the clock": found.spread("ratio_of_wall_seconds")},
        "wanted_ratio",
    )
    intro = f"""
        {whole(found.number("records"))} records of about 150 bytes in {whole(found.number("partitions"))} partitions of a real broker on
        loopback, read by the mirror (stored in a local folder with fsync, named in SQLite) and by a bare consumer of the same library
        that only puts the fields into lists. The process is kept on one core, with the broker on the others;
        {whole(found.number("repetitions"))} rounds alternate, ratios are those of the same round. By the clock the mirror also waits for
        the disk and for an answer of the cluster with each piece; in those waits the client reads on."""
    rows = [
        [
            f"by {name}",
            *(shown(found.spread(f"{who}_records_per_{unit}_second").by(1000)) for who in ("mirror", "bare")),
            shown(one, ratio),
        ]
        for (name, one), unit in zip(ratios.items(), ("core", "wall"), strict=True)
    ]
    least = found.number(wanted)
    case = at_least(least, ratios["the clock"])
    aim = Aim(
        "Mirror",
        "records a second by the clock, by those of a bare consumer",
        f"at least {least:g} times",
        [case],
    )
    head = ["thousand records a second", "the mirror", "the bare consumer", "ratio"]
    return Section("Kafka mirror", [("bench-mirror", found)], [paragraph(intro), table(head, rows)], [aim])
