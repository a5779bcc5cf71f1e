"""The status page: its first line, escaping, bounds, and a text for every picture."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from archiver.publish.progress import HeldBack
from archiver.status.advice import advice, topic_attention
from archiver.status.ages import age
from archiver.status.group_lag import GroupLag, GroupPartitionLag, GroupReport
from archiver.status.history import LagHistory
from archiver.status.journal import Cycle, Journal
from archiver.status.kafka_port import KafkaPort, WorkersShown
from archiver.status.lag import LagReport
from archiver.status.rates import Accepted
from archiver.web.page import (
    HEADERS,
    PARTITIONS_SHOWN,
    PARTITIONS_SHOWN_ALONE,
    TEXT_MAX,
    TOPICS_LISTED,
    TOPICS_SHOWN,
    PageValues,
    coded,
    page,
    visible,
)
from archiver.web.svg import records_chart, seconds_chart
from intake.log.consumer_groups import NO_LEADER_EPOCH, CommittedOffset
from intake.sources.files.source import FileProblem, FilesState
from reconcile.snapshot.oldest_required import OldestRequired
from tests.support.builders.standings import NOW_US, journal_of, of, partition, topic
from tests.support.builders.status_scenes import HOSTILE

VOID = {"meta", "br", "line", "path", "link", "img", "input", "hr"}


class Reading(HTMLParser):
    """Parses a page as a browser does: its elements, attributes and words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The words, with white space collapsed."""
        return " ".join(" ".join(self.words).split())


def values(
    standing: LagReport | None = None,
    journal: Journal | None = None,
    query: Mapping[str, str] | None = None,
    **more: Any,
) -> PageValues:
    if journal is None:
        journal = Journal(100)
        journal.becomes("serving")
    made = PageValues(
        standing=standing,
        journal=journal,
        history=LagHistory(3600.0, 100),
        now_us=NOW_US,
        look_interval_s=5.0,
        version="1.2.3",
        owner="here:1",
        roles=("intake", "archive", "reconcile"),
        cluster="shop",
        cluster_id="c" * 32,
        data="file:///data",
        leader="here:1",
        epoch=3,
        pin=None,
        pin_known=True,
        query=query or {},
    )
    return replace(made, **more)


def title(html: str) -> str:
    found = re.search(r"<h1>(.*?)</h1>", html)
    assert found is not None
    return found[1]


# the first line


def test_all_is_well_is_said_first_and_nothing_is_to_do() -> None:
    html = page(values(of(topic(partition()))))
    assert title(html) == "All is well."
    assert "What to do" not in html
    assert "<title>All is well. shop: Stream Archiver</title>" in html


def test_what_is_wrong_is_said_first_the_worst_before_the_rest() -> None:
    journal = Journal(10)
    journal.becomes("serving")
    journal.checked("objects", "no answer within 5 s", NOW_US - 90_000_000)
    held = HeldBack("billing", 7, 0, NOW_US - 60_000_000, NOW_US + 60_000_000, 5)
    standing = of(
        topic(
            partition(
                cause="transaction", reason="5 offsets wait for billing", records=5, seconds=60.0, held=held
            )
        ),
        topic(
            partition(cause="stuck", reason="the table is gone", records=1, seconds=9.0, topic="clicks"),
            name="clicks",
            stuck="the table is gone",
        ),
    )
    html = page(values(standing, journal))
    assert (
        title(html)
        == "2 things need an operator: objects does not answer, topic clicks is halted. 1 thing more to "
        "watch."
    )
    text = Reading(html).text
    places = [
        text.index(part)
        for part in ("objects does not answer since", "Topic clicks: the table is gone", "5 offsets wait")
    ]
    assert places == sorted(places)
    assert "More: A topic is halted" in text
    assert '<a href="/runbook#a-topic-is-halted">' in html


def test_while_it_starts_the_page_says_what_is_waited_for() -> None:
    journal = Journal(10)
    journal.checked("metadata", "cannot open the database", NOW_US - 5_000_000)
    html = page(values(None, journal, cluster_id=None, leader=None, epoch=None, pin_known=False))
    assert title(html) == "Starting, not ready yet. 1 thing needs an operator: metadata does not answer."
    text = Reading(html).text
    assert "The daemon is starting: it waits for metadata." in text
    assert "Nothing is known of the topics before" in text
    assert "not known yet" in text
    assert title(page(values(None, Journal(10)))) == "Starting, not ready yet."


def test_stopping() -> None:
    journal = Journal(10)
    journal.becomes("stopping")
    assert title(page(values(of(), journal))) == "Stopping."


# the order of the sections

ORDER = ("todo", "dependencies", "results", "topics", "groups", "daemon", "cycles")


def sections(html: str) -> list[str]:
    """The ids of the headings of the first two levels, as they stand."""
    return re.findall(r'<h2 id="([a-z]+)"', html)


def test_what_needs_a_person_stands_on_top() -> None:
    journal = journal_of(("tick", "skipped", "there:2 leads", {}))
    journal.checked("objects", "away", NOW_US)
    standing = of(topic(partition()), differences=("topic x is new; send its first record",))
    html = page(values(standing, journal, groups=GroupReport((group_lag("g", 1.0),), 0, 1)))
    assert sections(html) == list(ORDER)
    assert html.index("<h1>") < html.index('id="todo"')
    notes = html.index("<summary>2 notes, nothing to do at once</summary>")
    assert html.index('<li class="act">') < notes < html.index('id="dependencies"')
    assert "todo" not in sections(page(values(of(topic(partition()))))), "nothing is to do"
    only_notes = page(values(of(topic(partition()), differences=("a; b",))))
    assert "todo" not in sections(only_notes)
    assert "1 note, nothing to do at once" in only_notes


def test_healthy_dependencies_are_one_line_and_failing_ones_are_listed() -> None:
    journal = journal_of()
    for number in range(10):
        journal.checked(f"part-{number}", None, NOW_US - 60_000_000)
    html = page(values(of(topic(partition())), journal))
    assert '<span class="pill ok">OK</span> 10 dependencies OK</summary>' in html
    assert html.index("10 dependencies OK") < html.index("part-0")
    assert "DOWN" not in html
    journal.checked("objects", "no answer <within> 5 s", NOW_US - 90_000_000)
    html = page(values(of(topic(partition())), journal))
    section = html[html.index('id="dependencies"') : html.index('id="results"')]
    assert section.index("no answer &lt;within&gt; 5 s") < section.index("10 dependencies OK")
    assert "1 min 30 s" in section
    assert "None was asked yet" in page(values(of(), journal_of()))


def test_every_result_has_its_age_and_its_next_renewal() -> None:
    journal = journal_of(
        ("audit", "fine", "valid: 1 partition", {"verdict": "valid", "partitions": [{"verdict": "valid"}]}),
        ("reconcile", "fine", "0 findings in 1 topic", {}),
        ("watch", "fine", "1 dependency answers", {}),
    )
    journal.checked("objects", None, NOW_US)
    minute_us = 60_000_000
    due = {
        "watch": NOW_US + 3_000_000,
        "audit": NOW_US + 40 * minute_us,
        "cleanup": NOW_US - 1,
        "deep_audit": None,
    }
    text = Reading(page(values(of(topic(partition())), journal, renewals=due))).text
    section = text[text.index("What was found, and when next") :]
    for line in (
        "readiness OK serving; 1 of 1 dependency answers 1 s ago next in 3 s",
        "lag OK 1 topic, none with partitions held back 2 s ago next in 3 s",
        "audit valid valid: 1 partition (1 valid) 1 s ago next in 40 min",
        "deep audit none since this daemon began runs now",
        "reconcile fine 0 findings in 1 topic 1 s ago due now, before the cleanup",
    ):
        assert line in section, line
    text = Reading(page(values(of(topic(partition())), journal, roles=("intake",)))).text
    assert "this daemon has not the role reconcile; only by command: archiver audit --deep" in text
    assert "only by command: archiver reconcile" in text
    assert "daemon.deep_audit_interval" not in text


def test_a_result_of_a_command_says_who_found_it() -> None:
    journal = journal_of(("audit", "fine", "valid", {"verdict": "valid", "partitions": []}))
    counts = {"valid": 4, "invalid": 2, "unknown": 0}
    journal.found_by_command(
        "audit",
        Cycle(
            "audit",
            NOW_US - 500_000,
            0.1,
            "wrong",
            "invalid: orders:0",
            {"verdict": "invalid", "counts": counts},
            by="here:77",
        ),
    )
    html = page(values(of(topic(partition())), journal))
    text = Reading(html).text
    assert "audit invalid invalid: orders:0 (2 invalid, 4 valid) 500 ms ago by a command, here:77" in text
    assert title(html) == "1 thing needs an operator: the audit says invalid."


# untrusted text


def test_no_text_becomes_markup_wherever_it_stands() -> None:
    journal = Journal(10)
    journal.becomes("serving")
    journal.checked(HOSTILE, HOSTILE, NOW_US)
    for job in ("tick", "cleanup", "audit", "watch"):
        journal.add(
            Cycle(
                job, NOW_US, 0.1, "wrong", HOSTILE, {"verdict": HOSTILE, "partitions": [{"verdict": HOSTILE}]}
            )
        )
    finding = {"id": "gap", "severity": "error", "topic": HOSTILE, "partition": 0, "fixed": False}
    journal.found_by_command(
        "reconcile",
        Cycle(
            "reconcile",
            NOW_US,
            0.1,
            "wrong",
            HOSTILE,
            {"findings": [finding | {"what": HOSTILE, "repair": HOSTILE}]},
            by=HOSTILE,
        ),
    )
    held = HeldBack(HOSTILE, 7, 0, NOW_US, NOW_US, 5)
    rows = [partition(0, 5, 9.0, "transaction", f"waits for {HOSTILE} `{HOSTILE}`", topic=HOSTILE, held=held)]
    standing = of(topic(*rows, name=HOSTILE, stuck=HOSTILE), differences=(HOSTILE,))
    history = LagHistory(3600.0, 10)
    history.add(standing, 5.0)
    pin = OldestRequired(HOSTILE, 0, HOSTILE, NOW_US, HOSTILE)
    shown = values(
        standing,
        journal,
        {"topic": HOSTILE, "refresh": HOSTILE},
        history=history,
        pin=pin,
        cluster=HOSTILE,
        cluster_id=HOSTILE,
        data=HOSTILE,
        leader=HOSTILE,
        owner=HOSTILE + "2",
        roles=(HOSTILE,),
        version=HOSTILE,
    )
    for query in ({"topic": HOSTILE}, {"refresh": HOSTILE}, {"topic": "nothing" + HOSTILE}):
        html = page(replace(shown, query=query))
        reading = Reading(html)
        assert not {"script", "img", "iframe", "object", "form", "link", "base"} & set(reading.tags)
        assert not [name for name, _ in reading.attributes if name.startswith("on") or name == "style"]
        assert not [
            value
            for name, value in reading.attributes
            if name in ("href", "src") and not (value.startswith("/") or value == "#content")
        ]
        assert (
            "<script>alert('x')</script>\\u202e<img src=x onerror=alert(1)>&amp;\\u001b[31m" in reading.text
        )
        assert not set(html) & {"\u202e", "\x1b"}, "nothing turns the reading direction or the terminal"
        assert "\u202e" not in reading.text


def test_what_is_invisible_is_made_visible_and_long_texts_are_cut() -> None:
    assert visible("a\u202eb\x00\u2028\ud800é漢\n") == "a\\u202eb\\u0000\\u2028\\ud800é漢\n"
    assert visible(5) == 5
    assert visible("x" * (TEXT_MAX + 1_500)) == "x" * TEXT_MAX + "… (1,500 more characters)"
    html = page(values(of(topic(partition(0, 1, 1.0, "stuck", "y" * 1_000_000), stuck="z"))))
    assert len(html) < 100_000


def test_code_in_a_text_is_set_as_code_and_escaped() -> None:
    assert str(coded("run `archiver audit` <now>")) == "run <code>archiver audit</code> &lt;now&gt;"
    assert str(coded("an odd ` one <b>")) == "an odd ` one &lt;b&gt;"
    assert str(coded("`<b>`")) == "<code>&lt;b&gt;</code>"


def test_nothing_is_loaded_and_nothing_runs() -> None:
    reading = Reading(page(values(of(topic(partition())))))
    digest = base64.b64encode(hashlib.sha256(reading.style.encode()).digest()).decode()
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert "url(" not in reading.style
    assert "@import" not in reading.style
    assert not [
        value for name, value in reading.attributes if value.startswith(("http:", "https:", "//", "data:"))
    ]


def test_what_is_only_noted_leaves_all_well() -> None:
    second = journal_of(("tick", "skipped", "there:2 leads", {}))
    html = page(values(of(topic(partition())), second))
    assert title(html) == "All is well."
    assert '<div class="verdict ok"' in html
    second.becomes("stopping")
    assert '<div class="verdict note"' in page(values(of(topic(partition())), second))


def test_idle_cycles_push_nothing_out() -> None:
    journal = journal_of(
        ("tick", "fine", "12 records archived", {}), ("cleanup", "fine", "1 object deleted", {})
    )
    for number in range(500):
        journal.add(Cycle("tick", NOW_US + number, 0.1, "fine", "nothing was due", idle=True))
    assert [cycle.line for cycle in journal.cycles()] == ["1 object deleted", "12 records archived"]
    text = Reading(page(values(of(topic(partition())), journal))).text
    assert "The last 2 cycles" in text
    assert text.count("nothing was due") == 1, "as the newest of its job"
    assert "501 fine" in text


def test_cycles_are_sorted_by_the_time_that_is_shown() -> None:
    journal = journal_of()
    second_us = 1_000_000
    for job, began_us, seconds in (
        ("tick", 20, 1.0),
        ("tick", 40, 1.0),
        ("cleanup", 10, 35.0),
        ("audit", 30, 60.0),
    ):
        journal.add(Cycle(job, NOW_US + began_us * second_us, seconds, "fine", f"{job} {began_us}"))
    assert [cycle.line for cycle in journal.cycles()] == ["tick 40", "audit 30", "tick 20", "cleanup 10"]
    html = page(values(of(topic(partition())), journal))
    assert "The last 4 cycles, by start, newest first" in html
    assert '<th role="columnheader">started</th>' in html


def test_the_folders_that_files_come_from() -> None:
    assert "Folders of file sources" not in page(values(of()))
    problems = tuple(
        FileProblem(f"/in/{number:02}.jsonl", "line 3 is no <JSON>; mend it") for number in range(25)
    )
    failed = FilesState(
        "/in/*.jsonl",
        "orders",
        "jsonl",
        NOW_US,
        True,
        waiting=4,
        in_work="/in/zz.jsonl",
        finished=1234,
        failed=25,
        problems=problems,
    )
    silent = FilesState("/no/*.csv", "clicks", "delimited", NOW_US, True, trouble="the topic was deleted")
    text = Reading(page(values(of(topic(partition())), sources=[failed, silent]))).text
    section = text[text.index("Folders of file sources") :]
    for part in (
        "/in/*.jsonl",
        "orders",
        "/in/zz.jsonl",
        "1,234",
        "25",
        "line 3 is no <JSON>; mend it",
        "and 5 more",
    ):
        assert part in section, part
    assert "nothing is ingested: the topic was deleted" in section
    assert "2 things need an operator" in text


def test_a_topic_has_the_verdict_of_the_first_line_and_comes_first() -> None:
    """Records that were not decoded hold nothing back, and the topic is the worst even so."""
    undecoded = {"undecoded": [{"topic": "orders", "records": 8}]}
    journal = journal_of(("audit", "fine", "valid", undecoded))
    late = partition(0, 9, 60.0, "due", "waits", topic="clicks")
    html = page(values(of(topic(late, name="clicks"), topic(partition())), journal))
    assert title(html) == "No action is needed. To watch: topic orders has 8 undecoded keys and values."
    text = Reading(html).text
    assert "orders WATCH 1 partition; has 8 undecoded keys and values" in text
    assert "clicks OK 1 partition" in text
    listing = text[text.index("Every topic, the worst first") :]
    assert listing.index("orders WATCH iceberg") < listing.index("clicks iceberg")
    ended = page(values(of(topic(late, name="clicks"), topic(partition())), journal_of()))
    assert "orders OK 1 partition" in Reading(ended).text


def test_topics_that_advice_only_counts_have_a_verdict_too() -> None:
    undecoded = [{"topic": f"t{number}", "records": 1} for number in range(30)]
    journal = journal_of(("audit", "fine", "valid", {"undecoded": undecoded}))
    found = topic_attention(advice(of(), journal, NOW_US, 5.0))
    assert {severity for severity, _ in found.values()} == {"watch"}
    assert set(found) == {f"t{number}" for number in range(30)}
    assert found["t29"][1] == "has undecoded keys and values"


def test_one_of_a_thing_is_not_several() -> None:
    rows = [partition(number, 1, 60.0, "pending", "x") for number in range(PARTITIONS_SHOWN)]
    text = Reading(
        page(
            values(
                of(
                    replace(topic(partition(0, 1, 60.0, "pending", "x")), pending=1),
                    topic(*rows, partition(99), name="z"),
                )
            )
        )
    ).text
    assert "; 1 record behind, the oldest 1 min" in text
    assert "; 1 archive in no table yet" in text
    assert "1 of 1 partition held back" in text
    assert "The other 1 partition: nothing is behind." in text


# what is asked for


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("30", "30"), ("1", "1"), ("3600", "3600"), ("0", None), ("3601", None), ("-5", None), ("5s", None)],
)
def test_refresh(asked: str, seconds: str | None) -> None:
    html = page(values(of(), query={"refresh": asked}))
    assert re.findall(r'http-equiv="refresh" content="(.*?)"', html) == ([] if seconds is None else [seconds])
    assert ("stop that" in html) == (seconds is not None)


@pytest.mark.parametrize("asked", ["٣", "²", "", "9" * 5000, "1e3"])
def test_a_refresh_that_means_nothing_is_passed_over(asked: str) -> None:
    assert 'http-equiv="refresh"' not in page(values(of(), query={"refresh": asked, "unknown": "x"}))


def test_one_topic_alone() -> None:
    standing = of(topic(partition(topic="a"), name="a&b"), topic(partition(topic="c"), name="c"))
    both = page(values(standing, query={"refresh": "5"}))
    assert "/?refresh=5&amp;topic=a%26b" in both
    alone = Reading(page(values(standing, query={"topic": "a&b"})))
    assert alone.tags.count("h3") == 1
    assert "All 2 topics" in alone.text
    assert "There is no topic zzz" in Reading(page(values(standing, query={"topic": "zzz"}))).text


# bounds


def test_the_worst_partitions_are_shown_and_the_rest_is_summed() -> None:
    rows = [partition(number, number, float(number)) for number in range(300)]
    rows[7] = partition(7, None, None, "shelf", "a shelf is gone")
    rows[9] = partition(9, 1, 1.0, "pending", "pending")
    reading = Reading(page(values(of(topic(*rows)))))
    assert f"the worst {PARTITIONS_SHOWN} of 300" in reading.text
    rest = sorted(number for number in range(300) if number not in (7, 9))[: 300 - PARTITIONS_SHOWN]
    assert (
        f"The other 250 partitions: {sum(rest):,} records behind, the oldest {age(float(max(rest)))}."
        in reading.text
    )
    assert "a shelf is gone" in reading.text
    alone = Reading(page(values(of(topic(*rows)), query={"topic": "orders"})))
    assert alone.attributes.count(("data-label", "next offset")) == 300
    rows = [partition(number) for number in range(PARTITIONS_SHOWN_ALONE + 100)]
    text = Reading(page(values(of(topic(*rows)), query={"topic": "orders"}))).text
    assert "The other 100 partitions: nothing is behind." in text


def test_the_page_stays_small_with_a_thousand_topics() -> None:
    topics = [
        topic(partition(0, number % 7, float(number % 7), topic=f"t{number:04}"), name=f"t{number:04}")
        for number in range(1000)
    ]
    standing = of(*topics)
    history = LagHistory(3600.0, 1000)
    for second in range(0, 3600, 8):
        history.add(standing, float(second))
    html = page(values(standing, history=history))
    reading = Reading(html)
    assert reading.tags.count("h3") == TOPICS_SHOWN
    assert reading.attributes.count(("data-label", "goes to")) == TOPICS_LISTED
    assert "700 more are not listed" in reading.text
    assert len(html) < 1_000_000


# everything else that it says


def test_who_leads() -> None:
    def who(**more: Any) -> str:
        return Reading(page(values(of(), **more))).text

    assert "this daemon, here:1 (epoch 3)" in who()
    assert "another process, there:2: it archives and cleans" in who(leader="there:2")
    assert "not held; the next process" in who(leader=None)


def folds(html: str) -> dict[str, bool]:
    """Whether each part that can be folded is unfolded, by the id of its heading."""
    found = re.findall(r'<details class="fold"( open)?><summary><h2 id="(\w+)">', html)
    return {name: bool(unfolded) for unfolded, name in found}


def test_what_is_secondary_is_folded_and_says_the_most_important() -> None:
    def about(**more: Any) -> str:
        return page(values(of(topic(partition())), **more))

    assert folds(about()) == {"daemon": False, "cycles": False}
    assert "Who does what this daemon leads" in Reading(about()).text
    assert "Who does what another process leads" in Reading(about(leader="there:2")).text
    assert "Who does what no leader" in Reading(about(leader=None)).text


@pytest.mark.parametrize(
    ("trouble", "unfolded"),
    [
        ({}, False),
        ({"closed_because": "no free port"}, True),
        ({"unregistered_because": "no session"}, True),
        ({"workers": WorkersShown(2, 2, 0)}, False),
        ({"workers": WorkersShown(2, 1, 0)}, True),
    ],
)
def test_trouble_of_the_kafka_listener_is_not_folded(trouble: dict[str, Any], unfolded: bool) -> None:
    port = KafkaPort(
        listen=":9092",
        address="here:9092",
        closed_because=None,
        registered=True,
        unregistered_because=None,
        live=(),
    )
    html = page(values(of(), kafka=replace(port, **trouble)))
    assert folds(html)["daemon"] is unfolded


def test_only_partitions_with_trouble_are_unfolded() -> None:
    calm, wrong = of(topic(partition())), of(topic(partition(0, None, None, "shelf", "gone")))
    folded, unfolded = "<details><summary>Partitions", "<details open><summary>Partitions"
    assert folded in page(values(calm))
    assert unfolded in page(values(wrong))
    assert unfolded in page(values(calm, query={"topic": "orders"}))


def test_offsets_lags_reasons_the_pin_and_the_audit_are_there() -> None:
    journal = journal_of(
        (
            "audit",
            "fine",
            "valid: 2 partitions",
            {"verdict": "valid", "partitions": [{"verdict": "valid"}] * 2},
        ),
        ("tick", "fine", "12 records archived", {}),
        ("watch", "fine", "nothing new", {}),
    )
    pin = OldestRequired("orders", 1, "key", NOW_US - 3_600_000_000, "not archived yet")
    rows = (
        partition(0, 12_345, 200.0, "pending", "archives are in no table yet"),
        partition(1, None, None, "shelf", "a shelf is gone"),
    )
    text = Reading(page(values(of(topic(*rows)), journal, pin=pin))).text
    for part in (
        "12,345 behind, 3 min 20 s",
        "unknown",
        "archives are in no table yet",
        "a shelf is gone",
        "written 2026-01-02 02:04:05 UTC (1 h ago); orders partition 1 needs it: not archived yet",
        "valid valid: 2 partitions (2 valid) 1 s ago",
        "12 records archived",
        "last commit 2026-01-02 03:03:05 UTC (1 min ago)",
        "complete for records ingested before 2026-01-02 03:02:35 UTC (1 min 30 s ago)",
    ):
        assert part in text, part
    assert text.count("nothing new") == 1, "calm watch cycles are in no list but that of the jobs"


def test_the_deep_audit_is_reported_where_there_was_one() -> None:
    reported = (
        "deep_audit",
        "wrong",
        "invalid: orders:1",
        {"verdict": "invalid", "partitions": [{"verdict": "invalid"}, {"verdict": "valid"}]},
    )
    text = Reading(page(values(of(topic(partition())), journal_of(reported)))).text  # type: ignore[arg-type]
    assert "deep audit invalid invalid: orders:1 (1 invalid, 1 valid) 1 s ago" in text
    assert "the deep audit says invalid" in text
    text = Reading(page(values(of(topic(partition())), journal_of()))).text
    assert "deep audit none since this daemon began only by command: archiver audit --deep" in text


def test_a_chart_says_in_words_what_it_shows_and_leaves_holes() -> None:
    history = LagHistory(480.0, 10)
    for second, seconds in enumerate([1.0, 50.0, None, 20.0, 10.0]):
        history.add(
            of(topic(partition(0, None if seconds is None else int(seconds), seconds))), float(second * 10)
        )
    samples = history.samples("orders")
    chart = seconds_chart("orders", samples, history.known_s, history.span_s)
    assert (
        chart.description
        == "Over the last 5 min: up to 10 s in the newest 1 s, the most was 50 s, 30 s earlier. "
        "Not known for 37 of 41 samples."
    )
    assert [tick.text for tick in chart.y_ticks] == ["0 s", "30 s", "1 min"]
    assert [tick.text for tick in chart.x_ticks] == ["5 min ago", "2 min 30 s", "now"]
    assert len(chart.paths) == 4
    counts = records_chart("orders", samples, history.known_s, history.span_s)
    assert [tick.text for tick in counts.y_ticks] == ["0", "30", "60"]
    html = page(values(of(topic(partition())), history=history))
    assert html.count("<svg") == 2
    titles = re.findall(r'aria-labelledby="(chart-\S+) (chart-\S+)"', html)
    assert all(f'<title id="{one}">' in html and f'<desc id="{two}">' in html for one, two in titles)
    assert len(titles) == 2


def test_a_topic_shows_what_it_has_and_its_traffic() -> None:
    history, report = LagHistory(480.0, 10), of(topic(partition()))
    history.add(report, 0.0, {"orders": Accepted(records=100, bytes=2048, seconds=2.0)})
    text = Reading(page(values(report, history=history))).text
    assert f"; {report.topics[0].partitions[0].next:,} offsets, 50.0 records/s, 1.0 kB/s" in text


def test_a_chart_of_nothing_and_of_a_level_line() -> None:
    assert seconds_chart("a", [], 0.0, 3600.0).description == "Nothing is known of the last 5 min."
    history = LagHistory(480.0, 10)
    for second in range(400):
        history.add(of(topic(partition(0, 5, 5.0))), float(second))
    chart = seconds_chart("orders", history.samples("orders"), history.known_s, history.span_s)
    (line,) = chart.paths
    assert line.count("L") == 1, "a level line has two ends"
    assert chart.description == "Over the last 8 min: up to 5 s in the newest 1 s, the most of this time."


# consumer groups


def group_lag(name: str, lag_s: float | None) -> GroupLag:
    committed = CommittedOffset(4, NO_LEADER_EPOCH, "", NOW_US)
    one = GroupPartitionLag("orders", 0, 0, committed, 10, 6, lag_s, 2.0)
    return GroupLag(name, (one,))


def test_groups_are_shown_with_the_greatest_lag_first() -> None:
    groups = (group_lag("quick", 1.0), group_lag("<b>late</b>", 7200.0), group_lag("unread", None))
    html = page(values(of(topic(partition())), groups=GroupReport(groups, 7, 30)))
    assert "<b>late</b>" not in html
    places = [html.index(text) for text in ("unread", "&lt;b&gt;late&lt;/b&gt;", "quick")]
    assert places == sorted(places)
    assert f">{age(7200.0)}<" in html
    assert "and 7 more" in html
    assert folds(html)["groups"] is False
    assert "Consumer groups 10, the furthest behind first" in Reading(html).text


def test_without_groups_there_is_no_table_of_them() -> None:
    assert 'id="groups"' not in page(values(of(topic(partition())), groups=GroupReport()))
