"""Sections about intake: the writer, partitions, the time to an acknowledgement, and the Kafka mirror."""

from __future__ import annotations

from scripts.performance.measured import Measured, Results
from scripts.performance.sections import Aim, Case, Section, at_least, at_most
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
    """The writer compared with pyarrow alone."""
    found = results("writer")
    speed, target = found.spread("writer_mb_per_core_second"), found.number("wanted_mb_per_core_second")
    text = f"""
        {whole(found.number("records"))} records of {found.number("bytes_per_record"):.0f} bytes, half random and half repeating, are written
        with `send_batch`. They go to {whole(found.number("partitions"))} partitions in a local folder, with SQLite as the log. For
        comparison, pyarrow writes the same columns as one plain Parquet file with fsync. In {whole(found.number("repetitions"))} repetitions
        the writer handles {shown(speed)} MB of record bytes per CPU second (target: {target:g}). pyarrow alone handles
        {shown(found.spread("plain_pyarrow_mb_per_core_second"))} MB. The ratio is {shown(found.spread("ratio_writer_to_plain"), ratio)}.
        The writer additionally partitions, sorts, and gathers the rows of each partition."""
    aim = Aim(
        "Intake", "MB per CPU second of the writer", f"at least {target:g}", [at_least(target, speed, figure)]
    )
    return Section("Intake writer", [("bench-writer", found)], [paragraph(text)], [aim])


FULL_PARTITIONS = 1000
"""The target for a full flush is for this number of partitions."""


def partitions(results: Results) -> Section:
    """One flush over few partitions and over many."""
    found = results("intake")
    cases, file = found.each("partitions"), found.at("file_bytes")
    intro = f"""
        The records of *Intake writer* are spread evenly over the partitions of a topic. The time of one flush is measured from `send_batch`
        to the acknowledgement, including fsync and log, in {whole(found.number("repetitions"))} repetitions. *Slowdown* is the time divided by that of the fewest partitions, in the same repetition. By the first and the last row of each size, a segment costs {between(_segment_us(cases), whole)} µs,
        independent of its size. A flush makes several files if its entry would exceed `log.entry_bytes_max`. The size of an intake file
        was measured with {whole(file.number("segments"))} segments of {whole(file.number("records_per_segment"))} records. With random
        bytes, which cannot be compressed, it takes {file.number("random.ratio"):.3f} of the raw bytes. With values half of which repeat, it
        takes {file.number("half_repeating.ratio"):.2f}."""
    rows = [
        [f"{whole(one.number('records_per_flush'))} ({one.number('raw_mb_per_flush'):.1f} MB)", *_cells(one)]
        for one in cases
    ]
    head = ["records in a flush", "partitions", "files", "MB/s", "slowdown", "slowdown in CPU time"]
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
            f"time of a full flush over {whole(FULL_PARTITIONS)} partitions, relative to few",
            f"below {most:g} times",
            falls,
        ),
        Aim(
            "Intake",
            "bytes of a file of random records, relative to raw bytes",
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
    """Time of each further segment, in µs, from flushes of the same size."""
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
    """The time that one sender waits."""
    found = results("intake")
    cases = found.each("acknowledgement")
    intro = f"""
        One sender waits for each acknowledgement before it sends again. The writer uses a local folder and SQLite. There are
        {whole(found.number("repetitions"))} repetitions with {whole(cases[0].number("sends"))} sends in all. *Bare* is the time to store as
        many bytes without the archiver, in turns with it. It writes a new file with fsync of file and folder, and appends to a file with
        fdatasync. Shares are of the mean. *Before the upload* is the wait for more records (`delay_max`), a switch of threads, and
        encoding."""
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
    text = f"{delay:g} ms" if delay else "0"
    return [whole(one.number("records")), text, shown(one.spread("p50_ms"), milliseconds), *times, *shares]


def mirror(results: Results) -> Section:
    """The mirror compared with a bare consumer."""
    found = results("mirror")
    ratios, target = (
        {"CPU": found.spread("ratio_of_core_seconds"), "elapsed time": found.spread("ratio_of_wall_seconds")},
        "wanted_ratio",
    )
    intro = f"""
        {whole(found.number("records"))} records of about 150 bytes are in {whole(found.number("partitions"))} partitions of a real broker on
        loopback. The mirror stores them in a local folder with fsync, and appends their entries to the log in SQLite. A bare consumer of
        librdkafka only puts the fields into lists. The mirror has the daemon's settings of Python's garbage collector, the bare
        consumer has Python's defaults. The process is pinned to one core, and the broker to the others.
        {whole(found.number("repetitions"))} rounds alternate, and each ratio compares runs of the same round. In elapsed time the mirror also waits for
        the disk and for a response of the cluster, with each piece. The cluster continues to send during these waits."""
    rows = [
        [
            f"by {name}",
            *(shown(found.spread(f"{who}_records_per_{unit}_second").by(1000)) for who in ("mirror", "bare")),
            shown(one, ratio),
        ]
        for (name, one), unit in zip(ratios.items(), ("core", "wall"), strict=True)
    ]
    least = found.number(target)
    most_us = found.number("wanted_us_per_record")
    aims = [
        Aim(
            "Mirror",
            "records per second of elapsed time, relative to a bare consumer",
            f"at least {least:g} times",
            [at_least(least, ratios["elapsed time"])],
        ),
        Aim(
            "Mirror",
            "CPU time of a record, in µs",
            f"at most {most_us:g}",
            [at_most(most_us, found.spread("mirror_us_per_record"))],
        ),
    ]
    head = ["thousand records per second", "the mirror", "the bare consumer", "ratio"]
    return Section("Kafka mirror", [("bench-mirror", found)], [paragraph(intro), table(head, rows)], aims)
