"""Sections about logs: the log in SQLite and in etcd, offsets of consumer groups, and the events of the control topic."""

from __future__ import annotations

from scripts.performance.measured import Measured, Results
from scripts.performance.sections import Aim, Section, at_least
from scripts.performance.words import (
    between,
    figure,
    listed,
    milliseconds,
    paragraph,
    ratio,
    shown,
    size,
    table,
    whole,
)

BARE = {
    "frames": "frames",
    "frames_growing": "frames, appended to a growing file",
    "entry_growing": "the entry alone, appended to a growing file",
}


def sqlite(results: Results) -> Section:
    """Appends to SQLite, and several processes on one log."""
    found = results("log")
    append, several = found.at("append"), found.each("several_writers")
    refused = sum(one.number("refused") for one in several)
    intro = f"""
        {whole(append.number("appends"))} appends of {whole(append.number("entry_bytes"))} bytes (a flush of
        {whole(found.number("segments_per_entry"))} segments) go to the log in SQLite, in turns of 50 with bare writes. *Frames* is the
        least that SQLite can write: the WAL frames of the same appends ({size(append.number("wal_bytes_per_append"))} each). It takes one
        write and one fdatasync per append, into blocks that are reused. It copies no pages into a database, and has no locks, no index and
        no check of the free space. A ratio above 1 means that the log is faster than the bare writes. This happens with a growing file,
        which costs a commit of the file system's journal. A reused WAL avoids that."""
    shared = f"""
        Several processes append to one log, and each folds the entries of all. There are {whole(several[0].number("repetitions"))}
        repetitions of {several[0].number("seconds"):g} seconds. In a closed loop each process appends as fast as it can. A paced process makes one append per
        `intake.delay_max`, with the default. A share is the appends of a writer divided by the mean of all.
        {whole(refused) if refused else "No"} appends were refused, and the log held exactly what was acknowledged. Every process folds every
        entry, so this cost grows with the number of processes. A process that has just appended has the newest state. So it most often
        appends the next entry, too. Fewer, larger flushes help: one writer per machine and a longer `intake.delay_max`."""
    rows = [["the log", *_appends(append.at("log")), ""]]
    rows += [
        [label, *_appends(append.at(name)), shown(append.spread(f"{name}.ratio"), ratio)]
        for name, label in BARE.items()
    ]
    head = [
        f"{whole(append.number('repetitions'))} repetitions",
        "appends/s",
        "p50",
        "p99",
        "bare time / time of the log",
    ]
    sharing = table(
        ["writers", "appends/s", "p50", "p99", "smallest and largest share"],
        [_writers(one) for one in several],
    )
    target = append.number("wanted_ratio")
    aim = Aim(
        "The log",
        "time of bare frames, relative to an append",
        f"at least {target:g} times",
        [at_least(target, append.spread("frames.ratio"))],
    )
    return Section(
        "The log",
        [("bench-log", found)],
        [paragraph(intro), table(head, rows), paragraph(shared), sharing],
        [aim],
    )


def _appends(one: Measured) -> list[str]:
    return [
        shown(one.spread("appends_per_second")),
        *(milliseconds(one.number(f"{path}.median")) for path in ("p50_ms", "p99_ms")),
    ]


def _writers(one: Measured) -> list[str]:
    pace = "paced" if one.number("an_append_every_s") else "closed loop"
    shares = " and ".join(ratio(one.number(f"{path}_share_of_even.median")) for path in ("least", "largest"))
    return [f"{whole(one.number('writers'))}, {pace}", *_appends(one), shares]


def etcd(results: Results) -> Section:
    """The log in etcd, compared with a bare client and SQLite."""
    found = results("etcd_log")
    deployments = {"one member": found.at("one_member"), "three members": found.at("three_members")}
    rows = []
    for name, one in deployments.items():
        rows.append([f"{name}: the log", *_appends(one.at("log")), ""])
        for path, label in (("bare", "the bare client"), ("sqlite", "the log in SQLite")):
            rows.append(
                [f"{name}: {label}", *_appends(one.at(path)), shown(one.spread(f"{path}.ratio"), ratio)]
            )
    asked, seen, late = (
        listed(
            [f"{milliseconds(one.number(f'{path}.median'))} with {name}" for name, one in deployments.items()]
        )
        for path in ("poll_p50_ms", "seen_p50_ms", "seen_p99_ms")
    )
    reading = listed(
        [
            f"{figure(one.number('log.read_entries_per_second.median'))} with {name}"
            for name, one in deployments.items()
        ]
    )
    grown, kept = (
        between([found.number(f"bytes.{path}.{half}") for half in ("first_half", "second_half")], size)
        for path in ("bytes_per_append", "bytes_kept_per_entry")
    )
    intro = f"""
        The same entries are appended to the log in etcd. etcd has one member or three, all on this machine and its disk. Blocks of 50
        appends alternate with a bare gRPC client and with the log in SQLite. The bare client puts the same two keys in one transaction
        without a comparison. There are {whole(found.number("one_member.appends"))} appends each, in
        {whole(found.number("one_member.repetitions"))} repetitions. Each ratio compares runs of the same repetition. Entries read from the beginning, per second: {reading}."""
    polling = f"""
        Readers poll and do not watch. A poll that finds nothing takes {asked}. For the delay of reading, a second connection polls continuously. It has read an entry {seen} after the start of its append (p50). The p99 is {late}."""
    sizes = f"""
        An append of {whole(found.number("bytes.entry_bytes"))} bytes grows etcd's file by {grown}. Of these, {kept} remain after compaction of
        the history and defragmentation. Both were measured for each half of {whole(found.number("bytes.entries"))} appends."""
    head = ["", "appends/s", "p50", "p99", "time / time of the log in etcd"]
    parts = [*map(paragraph, (intro, polling, sizes)), table(head, rows)]
    return Section("The log in etcd", [("bench-etcd", found)], parts)


WAYS = {
    "whole": "one consumer for all partitions",
    "members": "ten consumers, every tenth partition each",
    "idle": "one consumer, nothing has advanced",
}


def group_offsets(results: Results) -> Section:
    """Consumer groups that commit their offsets."""
    found = results("group_offsets")
    kept = found.at("kept")
    intro = f"""
        {whole(found.number("groups"))} consumer groups with {whole(found.number("partitions"))} partitions each commit every
        {whole(found.number("every_s"))} s, in flushes of {whole(found.number("commits_per_flush"))} commits, to a log in SQLite. *Committer* is the CPU of
        the daemon that appends the commits, and *follower* that of every other process that reads the log, both in cores. Clients and the
        Kafka protocol are not included. There are {whole(found.number("repetitions"))} repetitions."""
    rows = [
        [
            label,
            shown(one.spread("committer_core_share")),
            shown(one.spread("follower_core_share")),
            figure(one.number("entries_per_s.median")),
            size(one.number("bytes_per_s.median")),
            figure(one.number("bytes_per_offset.median")),
        ]
        for name, label in WAYS.items()
        for one in [found.at(f"ways.{name}")]
    ]
    memory = f"""
        All offsets take {size(kept.number("memory_bytes"))} of memory in each process, and {size(kept.number("checkpoint_bytes"))} in a
        checkpoint. With one consumer in a group, a checkpoint is due every {kept.number("checkpoint_every_s"):g} s. Making one takes
        {shown(kept.spread("make_s"))} s of CPU, which is {shown(kept.spread("core_share"))} of a core. Of it, encoding the state takes
        {shown(kept.spread("encode_s"))} s, and decoding {shown(kept.spread("decode_s"))} s, which happens several times."""
    head = ["in each group", "committer", "follower", "entries/s", "entries, bytes/s", "bytes/offset"]
    return Section(
        "Committed offsets",
        [("bench-group-offsets", found)],
        [paragraph(intro), table(head, rows), paragraph(memory)],
    )


def control_topic(results: Results) -> Section:
    """Events from the ledger to the control topic."""
    found = results("control_topic")
    cases = found.each("cases")
    intro = f"""
        {listed([whole(one.number("events")) for one in cases])} events go from the ledger to the control topic, on a real broker on
        loopback. A bare producer of the same client library sends the same bytes at once. Both run in turns on the same core,
        {whole(found.number("repetitions"))} repetitions. Each event of a table waits until the one before it is acknowledged, because their
        order matters. Events of different tables share a wait. The other costs are reading the ledger, putting schema texts back into the
        events, and waiting for the acknowledgements of each table. A commit makes about five events."""
    rows = [
        ["events per second", *(shown(one.spread("publisher_events_per_wall_second")) for one in cases)],
        ["events per core-second", *(shown(one.spread("publisher_events_per_core_second")) for one in cases)],
        [
            "CPU time of the bare producer, relative to the publisher",
            *(shown(one.spread("ratio_of_core_seconds"), ratio) for one in cases),
        ],
    ]
    names = [
        f"{whole(one.number('tables_of_a_round'))}, {size(one.number('bytes_of_an_event'))} an event"
        for one in cases
    ]
    return Section(
        "Control events",
        [("bench-control-topic", found)],
        [paragraph(intro), table(["tables in a round", *names], rows)],
    )
