"""What a stream costs a month: bytes and requests as measured, at a price list (bench/cost_model.py)."""

from __future__ import annotations

from archiver.config.groups import CleanupSettings, IntakeSettings
from archiver.config.topics import ArchiveSettings
from bench import cost_model
from bench.cost_model import CLEANING, PARTITIONS, PUBLISHED
from bench.cost_requests import GIB
from scripts.performance.measured import FigureMissingError, Measured, Results
from scripts.performance.sections import NO_AIM, Aim, Case, Section
from scripts.performance.words import between, figure, paragraph, ratio, whole

SOURCES = {
    "cost": "bench-cost",
    "requests": "bench-requests",
    "capacity": "bench-capacity",
    "writer": "bench-writer",
}
SETTINGS = """```yaml
data: { part_bytes: 64MiB }
intake: { delay_max: 1s, delay_max_bytes: 60MB, queue_bytes_max: 256MB }
archive: { max_bytes: 64MiB, tick: 30s, round_bytes_max: 64GiB, concurrent_max: 288 }
spark: { task_bytes: 2GiB }
cleanup: { interval: 1h }
```
"""
"""What the model reckons with, as one would write it; a test holds them together."""


def cost(results: Results) -> Section:
    """Bytes, requests and dollars."""
    found = {name: results(name) for name in SOURCES}
    documents = {name: one.value for name, one in found.items()}
    try:
        months = cost_model.months(documents)
        tables = (
            cost_model.bytes_table(documents),
            cost_model.requests_table(documents),
            cost_model.month_table(documents, months),
        )
    except KeyError as error:
        files = ", ".join(one.file for one in found.values())
        message = f"one of {files}: there is no {error}, which bench/cost_model.py needs"
        raise FigureMissingError(message) from error
    bytes_table, requests_table, month_table = ("\n".join(lines) + "\n" for lines in tables)
    parts = [
        paragraph(_stored(found["cost"])),
        bytes_table,
        paragraph(_twice()),
        paragraph(_requests(found["cost"])),
        requests_table,
    ]
    parts += [
        paragraph(_fewer()),
        SETTINGS,
        paragraph(_a_month(months["payload"].together)),
        month_table,
        _notes(),
    ]
    cases = [Case(f"{figure(one.kafka / one.together)} times", None, name) for name, one in months.items()]
    aim = Aim("Cost", "1 GiB/s for a month: dollars of Kafka with three replicas, by ours", NO_AIM, cases)
    return Section("Cost", [(target, found[name]) for name, target in SOURCES.items()], parts, [aim])


def _stored(found: Measured) -> str:
    messages = found.parts("messages")
    columns = [one.number("archive_by_kafka.1MiB") for name, one in messages.items() if name != "payload"]
    intake = [one.number("by_raw.intake") / one.number("by_raw.kafka_1MiB") for one in messages.values()]
    return f"""
        {whole(found.number("messages.narrow.raw_bytes") / 2**20)} MiB of keys and values of each message in
        {whole(found.number("partitions"))} partitions, stored here, and by a real broker to which a real producer sends them with
        `compression.type=zstd` in batches that are always full. *Payload* is 1 KiB, a quarter of it random and the rest zeros, as in the
        [benchmark that Bufstream published](https://buf.build/docs/bufstream/cost/). Records have no headers; segments are counted
        without their indexes. Bytes do not depend on the machine. Where there are columns to make, an archive takes
        {between(columns, ratio)} of a segment in batches of 1 MiB; intake files, which are compressed quickly rather than well, take
        {between(intake, ratio)}."""


def _twice() -> str:
    cleanup, archive = CleanupSettings(), ArchiveSettings()
    kept_h = archive.snapshots_max * archive.complete_delay_max / 3600
    return f"""
        **Stored twice.** A record is in an intake file and in an archive until the file is deleted: with the defaults
        {cost_model.intake_age_s(cleanup) / 3600:g} hours after it was written, on average (`cleanup.grace` is
        {cleanup.grace / 3600:g} h, `cleanup.interval` {cleanup.interval / 3600:g} h); with an interval of {CLEANING.interval / 3600:g} h
        {cost_model.intake_age_s(CLEANING) / 3600:g} hours. A table's newest {archive.snapshots_max} snapshots (`archive.snapshots_max`)
        keep their intake too, which at a commit every {archive.complete_delay_max / 60:g} minutes is {kept_h:.1f} hours. Table
        metadata is small in comparison ([capacity.md](operations/capacity.md#bytes))."""


def _requests(found: Measured) -> str:
    intake = IntakeSettings()
    gets = [
        one.number(f"intake_reads.15000000.gets.{PARTITIONS}") / PARTITIONS
        for one in found.parts("messages").values()
    ]
    return f"""
        **Requests.** A writer closes an intake file when it has {intake.delay_max_bytes / 1e6:g} MB or is {1000 * intake.delay_max:g} ms
        old: {whole(3600 / intake.delay_max)} an hour for each writer with little to do. An archive above `data.part_bytes` takes two
        requests more than it has parts. A task opens each intake file that one of its partitions has records in, some
        {between(gets, whole)} GETs each time, and an archive as large as `spark.task_bytes` is a task by itself. How often a file is
        opened is what the planner makes of a steady stream (`bench/cost_requests.py`); what that takes was counted on a server, for files
        of {PARTITIONS} partitions, and so were commits and idle daemons. Nothing was run at this rate."""


def _fewer() -> str:
    archive = ArchiveSettings()
    return f"""
        The defaults are not made for many busy partitions in a topic. These settings ask less, for records that are acknowledged after a
        second or so and in the table after a minute or two. In all columns `archive.round_bytes_max` is raised: with the default,
        {archive.round_bytes_max / GIB:g} GiB every {archive.tick:g} s, one deployment archives
        {archive.round_bytes_max / archive.tick / GIB:g} GiB/s at most."""


def _a_month(payload: float) -> str:
    return f"""
        **A month** of 1 GiB/s in {PARTITIONS} partitions with these settings: 30 days, of which the records of
        {cost_model.RETENTION_S / 86_400:g} are kept. Kafka is by the published reckoning with our segments in batches of 1 MiB; what makes
        tables of them comes on top. Only the payload can be held against what was published of it, compressed to a quarter: Bufstream
        ${cost_model.BUFSTREAM:,} ($5,963 for what it runs on, $5,184 of fees), Kafka with three replicas in three zones
        ${cost_model.KAFKA:,}. Here it comes to ${payload:,.0f}. Here the records become a table, and the published benchmark does
        not say that it did; it also served 1 GiB/s to consumers, which is not in ours."""


def _notes() -> str:
    (_, first), (_, second), (_, third) = PUBLISHED.storage
    prices = f"""
        - *Prices.* S3 Standard in US East (N. Virginia), from [its page](https://aws.amazon.com/s3/pricing/): ${first} for a GB and month
        up to 50 TB, ${second} up to 500 TB, ${third} beyond; ${PUBLISHED.writes} for a thousand requests that write or list,
        ${PUBLISHED.reads} for others, nothing for DELETE. All else follows from Bufstream's page: ${PUBLISHED.core:.2f} a month for a
        processor (m6in.xlarge, a year's commitment), ${PUBLISHED.metadata_store:g} for three members of etcd,
        ${PUBLISHED.between_zones} for a GiB between zones, ${PUBLISHED.disk:.3f} for a GiB and month of a broker's disk. Neither page
        shows a date, and both were read in stored copies: put your prices into `bench/cost_model.py`."""
    processors = f"""
        - *Processors.* By the [intake writer's](#intake-writer) measure and the CPU that archiving took here (`archive_cpu_s_per_gib`),
        {100 * (1 - cost_model.BUSY):g} % of them idle, and {cost_model.LEADER_CORES} for the leader."""
    rest = """
        - *Not counted:* reading (queries, `consume`), checkpoints and history files, starts, monitoring, people; that a row group of intake is
        decoded by each task with a partition in it, and that every process folds the whole intake log; archives that expired and are not
        deleted yet; [compaction](#compaction)."""
    return "".join(
        paragraph(one).rstrip("\n").replace("\n", "\n  ") + "\n" for one in (prices, processors, rest)
    )
