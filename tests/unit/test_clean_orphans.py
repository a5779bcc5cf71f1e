"""Which objects below a table's folder may be deleted: each kind, and each reason to keep one."""

from __future__ import annotations

import uuid

from archiver.ledger.archives import ArchiveFile, OldArchive, Replaced, Rewrite
from archiver.ledger.views import KilledFile, PendingFile, TopicLedger
from archiver.objects.paths import archive_key, data_prefix, metadata_prefix
from archiver.objects.store import ObjectInfo
from reconcile.snapshot.unreferenced_objects import Folder, Unneeded
from tests.support.catalog.tables import TOPIC_ID

OLD_US, YOUNG_US, LIMIT_US = 100, 300, 200


def key(base: int, end: int, epoch: int = 1, partition: int = 0) -> str:
    return archive_key(TOPIC_ID, partition, "day", 20_000, base, end, epoch)


def archive(name: str) -> ArchiveFile:
    return ArchiveFile(name, 1, b"", b"", 0, 0, 10, 1, 1, 10, 10, 0, 0)


def folder(ledger: TopicLedger | None = None, named: set[str] | None = None, **other: object) -> Folder:
    known = {"epoch": 5, "condemned": set[str](), "has_table": True, **other}
    ledger = ledger or TopicLedger(TOPIC_ID)
    ledger.watermarks = ledger.watermarks or {0: 50, 1: 50}
    return Folder(TOPIC_ID, ledger, named=named or set(), old_us=LIMIT_US, **known)  # type: ignore[arg-type]


def judged(where: Folder, *keys: str, modified_us: int = OLD_US) -> dict[str, str]:
    stored = [ObjectInfo(one, 7, modified_us) for one in sorted(keys)]
    found: list[Unneeded] = list(where.archives(stored))
    assert all(item.size == 7 for item in found)
    return {item.key: item.kind for item in found}


def test_d1_what_is_named_stays_in_any_other_state() -> None:
    ledger = TopicLedger(TOPIC_ID, starts={0: 100})
    ledger.killed[key(0, 10)] = KilledFile(archive(key(0, 10)), "why", 1)
    where = folder(ledger, {key(0, 10), key(10, 20)})
    assert judged(where, key(0, 10), key(10, 20)) == {}
    assert where.held == 2


def test_below_the_start_an_archive_is_retired_and_one_that_reaches_beyond_it_stays() -> None:
    ledger = TopicLedger(TOPIC_ID, starts={0: 20})
    found = judged(folder(ledger), key(0, 10), key(10, 20), key(15, 25), key(0, 10, partition=1))
    assert found == {key(0, 10): "retired", key(10, 20): "retired"}


def test_d1_what_is_pending_or_of_a_newer_leader_stays() -> None:
    ledger = TopicLedger(TOPIC_ID)
    ledger.add_pending(PendingFile(archive(key(0, 10)), b"", None, 0, 0, None, 0))
    ledger.rewrites.under_way[key(20, 30)] = Rewrite(
        (OldArchive(key(20, 30, 2), 1),), archive(key(20, 30)), uuid.UUID(int=1), 1, 1
    )
    ledger.rewrites.replaced[key(30, 40)] = Replaced(key(30, 40, 2), 1)
    found = judged(
        folder(ledger, {key(0, 100, 3)}), key(0, 10), key(20, 30), key(30, 40), key(40, 50, 6), key(0, 100, 3)
    )
    assert found == {}


def test_killed_archives_go_at_any_age() -> None:
    ledger = TopicLedger(TOPIC_ID)
    ledger.killed[key(0, 10)] = KilledFile(archive(key(0, 10)), "why", 1)
    rewrite = Rewrite((OldArchive(key(10, 20), 1),), archive(key(10, 20, 2)), uuid.UUID(int=1), 1, 1)
    ledger.rewrites.abandoned[key(10, 20, 2)] = (rewrite, "why")
    named = {key(0, 20, 3)}
    found = judged(folder(ledger, named), *named, key(0, 10), key(10, 20, 2), modified_us=YOUNG_US)
    assert found == {key(0, 10): "killed", key(10, 20, 2): "killed"}


def test_a_killed_archive_without_a_replacement_stays() -> None:
    """The response to its commit was lost, another program compacted it, and its snapshot expired. Its rows
    are in the table, but no other archive has its records."""
    ledger = TopicLedger(TOPIC_ID, watermarks={0: 20})
    for name in (key(0, 10), key(0, 10, 2), key(20, 30)):
        ledger.killed[name] = KilledFile(archive(name), "why", 1)
    found = judged(folder(ledger), key(0, 10), key(0, 10, 2), key(20, 30))
    assert found == {key(0, 10): "killed", key(20, 30): "killed"}, (
        "streams read the newer one, and intake has what comes later"
    )
    found = judged(folder(ledger), key(0, 10), key(0, 10, 2), key(0, 15), key(20, 30), modified_us=YOUNG_US)
    assert found == {key(0, 10): "killed", key(0, 10, 2): "killed", key(20, 30): "killed"}


def test_a_marked_archive_goes_also_if_only_a_killed_one_holds_its_offsets() -> None:
    """The killed one stays for streams. It was committed, compacted and expired before the ledger had an
    entry of its commit."""
    condemned, killed = key(0, 10), key(0, 10, 2)
    ledger = TopicLedger(TOPIC_ID, watermarks={0: 20})
    ledger.killed[killed] = KilledFile(archive(killed), "why", 1)
    assert judged(folder(ledger, condemned={condemned}), condemned, killed) == {condemned: "stray"}
    assert judged(folder(ledger, {killed}, condemned={condemned}), condemned, killed) == {
        condemned: "stray"
    }, "named, and not yet in the ledger"
    assert judged(folder(ledger, condemned={condemned}), killed) == {}
    assert judged(folder(ledger), condemned, killed) == {killed: "killed"}, (
        "what is neither stands for a killed one"
    )
    assert judged(folder(ledger, condemned={killed}), condemned, killed) == {killed: "killed"}


def test_an_unreferenced_file_goes_if_archives_that_stay_hold_all_of_its_offsets_and_it_is_old() -> None:
    named = {key(0, 6, 2), key(6, 12, 2)}
    assert judged(folder(None, named), *named, key(0, 10)) == {key(0, 10): "stray"}
    assert judged(folder(None, named), *named, key(0, 13)) == {}
    assert judged(folder(None, {key(0, 6, 2)}), *named, key(0, 10)) == {key(0, 10): "stray"}, (
        "a newer archive stands for an older one"
    )
    assert judged(folder(None, named), *named, key(0, 10), modified_us=YOUNG_US) == {}
    assert judged(folder(None, named, epoch=0), *named, key(0, 10)) == {}


def test_from_the_watermark_on_intake_has_everything() -> None:
    ledger = TopicLedger(TOPIC_ID, watermarks={0: 20})
    assert judged(folder(ledger, {key(0, 20, 2)}), key(0, 20, 2), key(15, 25), key(20, 30)) == {
        key(15, 25): "stray",
        key(20, 30): "stray",
    }
    assert judged(folder(ledger), key(0, 10), key(15, 25)) == {}, "offsets 15 to 19 are nowhere else"


def test_ranges_of_gaps_and_what_is_below_the_start_need_no_archive() -> None:
    ledger = TopicLedger(TOPIC_ID, starts={0: 4})
    ledger.passed.add(0, 6, 8)
    assert judged(folder(ledger, {key(4, 6, 2), key(8, 12, 2)}), key(4, 6, 2), key(8, 12, 2), key(0, 10)) == {
        key(0, 10): "stray"
    }


def test_an_archive_that_another_writer_compacted_away_stays_for_streams() -> None:
    """Nothing names it any more, and it is the only object with its records as they were sent."""
    chain = [key(0, 10), key(10, 20, 2), key(20, 30, 2)]
    assert (
        judged(
            folder(),
            *chain,
            f"{data_prefix(TOPIC_ID)}ingest_day=2026-01-01/compacted.parquet",
            modified_us=YOUNG_US,
        )
        == {}
    )
    assert judged(folder(), *chain) == {}
    assert judged(folder(), *chain, key(0, 20)) == {key(0, 20): "stray"}


def test_of_two_that_hold_the_same_offsets_one_stays_also_when_the_other_is_marked() -> None:
    one, other = key(0, 10, 1), key(0, 10, 2)
    assert judged(folder(), one, other) == {one: "stray"}
    assert judged(folder(condemned={one}), one, other) == {one: "stray"}
    assert judged(folder(condemned={one}), one) == {}, "needed again: the other one is gone"
    assert judged(folder(condemned={other}), one, other) == {other: "stray"}, (
        "a marked one replaces no other archive"
    )
    assert judged(folder(condemned={key(0, 5)}), key(0, 5), key(0, 10)) == {key(0, 5): "stray"}, (
        "what held it has been compacted away"
    )


def test_what_no_stream_reads_replaces_nothing_also_if_a_table_names_it() -> None:
    """A replay rewrote the old archive, and another program rolled the table back to before that. Streams
    read the new one, which nothing names."""
    old, new = key(0, 10, 1), key(0, 10, 2)
    ledger = TopicLedger(TOPIC_ID)
    ledger.rewrites.replaced[old] = Replaced(new, 9)
    assert judged(folder(ledger, {old}), old, new) == {}
    assert judged(folder(TopicLedger(TOPIC_ID), {old}, condemned={old}), old, new) == {}
    assert judged(folder(TopicLedger(TOPIC_ID), {old}), old, new) == {new: "stray"}


def test_what_waits_for_its_commit_replaces_nothing_yet() -> None:
    """The same range was committed with a predecessor's file, which was compacted away. The pending one will
    be killed."""
    ledger = TopicLedger(TOPIC_ID)
    ledger.add_pending(PendingFile(archive(key(0, 10, 2)), b"", None, 0, 0, None, 0))
    assert judged(folder(ledger), key(0, 10), key(0, 10, 2)) == {}


def test_without_a_table_the_newest_chain_stays() -> None:
    found = judged(
        folder(has_table=False),
        key(0, 10, 1),
        key(0, 5, 2),
        key(5, 20, 3),
        f"{data_prefix(TOPIC_ID)}x.parquet",
    )
    assert found == {key(0, 10, 1): "stray"}


def test_partitions_are_judged_by_themselves() -> None:
    named = {key(0, 10, 2, partition=1)}
    assert judged(folder(None, named), *named, key(0, 10), key(0, 10, partition=1)) == {
        key(0, 10, partition=1): "stray"
    }


def test_files_of_others_go_only_when_they_are_old_and_unnamed() -> None:
    mine, other, strange = (
        f"{data_prefix(TOPIC_ID)}{name}" for name in ("a/00000-1.parquet", "a/00000-2.parquet", "_SUCCESS")
    )
    assert judged(folder(None, {mine}), mine, other, strange) == {other: "foreign"}
    assert judged(folder(None, {mine}), mine, other, strange, modified_us=YOUNG_US) == {}


def test_metadata_goes_when_nothing_names_it_and_it_is_old() -> None:
    prefix = metadata_prefix(TOPIC_ID)
    names = [
        "00001-a.metadata.json",
        "00002-b.gz.metadata.json",
        "snap-1.avro",
        "x-m0.avro",
        "y.stats",
        "version-hint.text",
        "note.txt",
    ]
    named = {f"{prefix}00002-b.gz.metadata.json"}
    stored = [ObjectInfo(prefix + name, 7, OLD_US) for name in names]
    found = [item.key.removeprefix(prefix) for item in folder(None, named).metadata(stored)]
    assert found == ["00001-a.metadata.json", "snap-1.avro", "x-m0.avro", "y.stats"]
    assert list(folder(None, named).metadata([ObjectInfo(prefix + "x-m0.avro", 7, YOUNG_US)])) == []
    assert list(folder(None, named, has_table=False).metadata(stored)) == []
