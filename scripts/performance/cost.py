"""The section about monthly cost: measured bytes and requests at list prices (bench/cost_model.py)."""

from __future__ import annotations

from archiver.config.groups import CleanupSettings, IntakeSettings
from archiver.config.topics import ArchiveSettings
from bench import cost_model
from bench.cost_model import CLEANING, PARTITIONS, PUBLISHED
from bench.cost_requests import GIB
from scripts.performance.measured import FigureMissingError, Measured, Results
from scripts.performance.sections import NO_AIM, Aim, Case, Section
from scripts.performance.words import between, bullets, figure, paragraph, ratio, whole

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
"""The settings that the model assumes, as in a configuration file. A test keeps both equal."""


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
    aim = Aim(
        "Cost",
        "1 GiB/s for a month: dollars of Kafka with three replicas, relative to the archiver",
        NO_AIM,
        cases,
    )
    return Section("Cost", [(target, found[name]) for name, target in SOURCES.items()], parts, [aim])


def _stored(found: Measured) -> str:
    messages = found.parts("messages")
    columns = [one.number("archive_by_kafka.1MiB") for name, one in messages.items() if name != "payload"]
    intake = [one.number("by_raw.intake") / one.number("by_raw.kafka_1MiB") for one in messages.values()]
    return f"""
        The archiver stores {whole(found.number("messages.narrow.raw_bytes") / 2**20)} MiB of keys and values of each message, in
        {whole(found.number("partitions"))} partitions. A real Kafka broker stores the same records. A real producer sends them to it with
        `compression.type=zstd`, in batches that are always full. *Payload* is 1 KiB, a quarter of it random and the rest zeros, as in the
        [benchmark that Bufstream published](https://buf.build/docs/bufstream/cost/). Records have no headers. Segments are counted
        without their indexes. Bytes do not depend on the machine. For messages with columns, an archive takes {between(columns, ratio)} of a
        segment in batches of 1 MiB. Intake files take {between(intake, ratio)} of a segment, because their compression is chosen for speed."""


def _twice() -> str:
    cleanup, archive = CleanupSettings(), ArchiveSettings()
    kept_h = archive.snapshots_max * archive.complete_delay_max / 3600
    return f"""
        **Stored twice.** A record is in an intake file and in an archive until the intake file is deleted. With the defaults this is
        {cost_model.intake_age_s(cleanup) / 3600:g} hours after it was written, on average (`cleanup.grace` is
        {cleanup.grace / 3600:g} h, `cleanup.interval` {cleanup.interval / 3600:g} h). With an interval of {CLEANING.interval / 3600:g} h
        it is {cost_model.intake_age_s(CLEANING) / 3600:g} hours. The newest {archive.snapshots_max} snapshots of a table
        (`archive.snapshots_max`) also retain their intake. With a commit every {archive.complete_delay_max / 60:g} minutes this is
        {kept_h:.1f} hours. Table metadata is small in comparison ([capacity.md](operations/capacity.md#bytes))."""


def _requests(found: Measured) -> str:
    intake = IntakeSettings()
    gets = [
        one.number(f"intake_reads.15000000.gets.{PARTITIONS}") / PARTITIONS
        for one in found.parts("messages").values()
    ]
    return f"""
        **Requests.** A writer closes an intake file when it has {intake.delay_max_bytes / 1e6:g} MB or is {1000 * intake.delay_max:g} ms
        old. So a writer with little load makes {whole(3600 / intake.delay_max)} an hour. An archive above `data.part_bytes` takes two
        requests more than it has parts. A task opens each intake file that has records of one of its partitions, with about
        {between(gets, whole)} GETs each time. An archive as large as `spark.task_bytes` is a task by itself. How often a file is opened
        follows from the planner for a steady stream (`bench/cost_requests.py`). The requests of each opening were counted on a server, for
        files of {PARTITIONS} partitions. Those of commits and idle daemons were counted, too. The rate of 1 GiB/s is calculated and was not
        run."""


def _fewer() -> str:
    archive = ArchiveSettings()
    return f"""
        The defaults are not made for many busy partitions in a topic. The settings below need fewer requests. With them a record is
        acknowledged after about a second, and is in the table after one or two minutes. In all columns `archive.round_bytes_max` is raised.
        With the default, {archive.round_bytes_max / GIB:g} GiB every {archive.tick:g} s, one deployment archives
        {archive.round_bytes_max / archive.tick / GIB:g} GiB/s at most."""


def _a_month(payload: float) -> str:
    return f"""
        **A month** of 1 GiB/s in {PARTITIONS} partitions with these settings: 30 days, with a retention of
        {cost_model.RETENTION_S / 86_400:g} days. Kafka's cost follows the published calculation, with the segments measured here in batches
        of 1 MiB. It does not include a job that writes tables. Only the payload, compressed to a quarter, can be compared with the
        published figures. Bufstream publishes ${cost_model.BUFSTREAM:,} ($5,963 for infrastructure, $5,184 for fees). For Kafka with three
        replicas in three zones it publishes ${cost_model.KAFKA:,}. The archiver's figure is ${payload:,.0f}. Two differences remain. The
        archiver writes a table, and the published benchmark does not say that it did. The published benchmark also served 1 GiB/s to
        consumers, which the archiver's figure does not include."""


def _notes() -> str:
    (_, first), (_, second), (_, third) = PUBLISHED.storage
    prices = f"""
        *Prices.* S3 Standard in US East (N. Virginia), from [its page](https://aws.amazon.com/s3/pricing/). A GB and month costs ${first} up
        to 50 TB, ${second} up to 500 TB, and ${third} beyond. A thousand requests cost ${PUBLISHED.writes} if they write or list, and
        ${PUBLISHED.reads} otherwise; DELETE is free. All other prices follow from Bufstream's page. A processor costs
        ${PUBLISHED.core:.2f} a month (m6in.xlarge, a year's commitment), and three members of etcd cost ${PUBLISHED.metadata_store:g}. A GiB
        between zones costs ${PUBLISHED.between_zones}, and a GiB and month of a broker's disk ${PUBLISHED.disk:.3f}. Neither page shows a
        date, and both were read in stored copies. Put your own prices into `bench/cost_model.py`."""
    processors = f"""
        *Processors.* Their number follows from the throughput of the [intake writer](#intake-writer) and the CPU that archiving took here
        (`archive_cpu_s_per_gib`). {100 * (1 - cost_model.BUSY):g} % of them are idle, and {cost_model.LEADER_CORES} are for the leader."""
    rest = """
        *Not counted:* reading (queries, `consume`), checkpoints and history files, starts, monitoring, people, expired archives that are not
        deleted yet, and [compaction](#compaction). Two costs of CPU are not counted, either. Each task decodes a row
        group of intake in which it has a partition, and every process folds the whole intake log."""
    return bullets([" ".join(one.split()) for one in (prices, processors, rest)])
