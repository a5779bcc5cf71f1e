"""The logs: in SQLite, in etcd, and the events that leave the ledger for a topic."""

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
        {whole(found.number("segments_per_entry"))} segments) to the log in SQLite, in turns of 50 with bare writes. *Frames* is the
        least SQLite can do: the bytes of the WAL frames of the same appends ({size(append.number("wal_bytes_per_append"))} each), one
        write and one fdatasync per append, into blocks that are used again and again, without copying pages into a database, locks,
        index or a check of the free space. Over 1 means faster than the bare writes: a file that grows costs a commit of the file
        system's journal, which a WAL that is used again saves."""
    shared = f"""
        Several processes on one log, each folding what all append; {whole(several[0].number("repetitions"))} repetitions of
        {several[0].number("seconds"):g} seconds. Closed loop is as fast as they can; paced is an append at the default
        `intake.delay_max` each. A share is a writer's appends by the mean of all. {whole(refused) if refused else "No"} appends were
        refused, and the log held exactly what was acknowledged. So many processes fold each entry as many times, and a process that has just
        appended has the newest state and most often wins the next index too. Fewer, larger flushes help: one writer per machine and a
        longer `intake.delay_max`."""
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
        "bare time / ours",
    ]
    sharing = table(
        ["writers", "appends/s", "p50", "p99", "smallest and largest share"],
        [_writers(one) for one in several],
    )
    wanted = append.number("wanted_ratio")
    aim = Aim(
        "The log",
        "time of bare frames, by that of an append",
        f"at least {wanted:g} times",
        [at_least(wanted, append.spread("frames.ratio"))],
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
        The same entries appended to the log in etcd (one member; three, all on this machine and its disk), in turns of 50 with a bare
        gRPC client that puts the same two keys in one transaction and compares nothing, and with the log in SQLite.
        {whole(found.number("one_member.appends"))} each, {whole(found.number("one_member.repetitions"))} repetitions; ratios are of the
        same repetition. Entries read from the beginning in a second: {reading}. Nothing watches: who waits for the next entry asks again.
        One question that finds nothing takes {asked}; another connection that asks without pause has read an entry {seen} after its
        append began, in 99 of 100 cases within {late}. An append of {whole(found.number("bytes.entry_bytes"))} bytes lets etcd's file
        grow by {grown}, of which {kept} stay when the history is compacted and the file defragmented, in either half of
        {whole(found.number("bytes.entries"))} appends."""
    head = ["", "appends/s", "p50", "p99", "time / that of the log in etcd"]
    return Section("The log in etcd", [("bench-etcd", found)], [paragraph(intro), table(head, rows)])


def control_topic(results: Results) -> Section:
    """Events from the ledger to a topic."""
    found = results("control_topic")
    cases = found.each("cases")
    intro = f"""
        {listed([whole(one.number("events")) for one in cases])} events from the ledger to the control topic on a real broker on
        loopback, and the same bytes from a bare producer of the same client at once, in turns on the same core,
        {whole(found.number("repetitions"))} repetitions. Events of one table wait for each other, because their order counts; those of
        different tables share a wait. The rest is reading the ledger, putting schema texts back into the events and waiting for each
        table's acknowledgement. A commit makes five events or so."""
    rows = [
        ["events a second", *(shown(one.spread("publisher_events_per_wall_second")) for one in cases)],
        ["events per core-second", *(shown(one.spread("publisher_events_per_core_second")) for one in cases)],
        ["CPU time, bare by ours", *(shown(one.spread("ratio_of_core_seconds"), ratio) for one in cases)],
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
