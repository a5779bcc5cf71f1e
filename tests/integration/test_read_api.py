"""Topics and messages through the read API, as they are in the log, in archives and in tables."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from archiver.app import reading
from archiver.status.journal import Cycle
from archiver.status.rates import Accepted
from archiver.web import read_api
from archiver.web.console import Console
from archiver.web.read_endpoints import VIEWS
from intake.records import Record
from intake.write.producer import Producer
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.pages import check_harmless
from tests.support.process.processes import until
from tests.support.process.web import Daemon
from tests.support.schema.orders import order

HOSTILE = [
    b"<script>alert(1)</script>",
    b"<img src=x onerror=alert(1)>",
    b'"><svg onload=alert(1)>',
    b"</code></td><script src=//evil>",
    "\u202egnp.exe\u2066\u200b".encode(),
    b"\x1b[31mred\x00\x07",
    b"{{ 7 * 7 }}{% raw %}",
    b"javascript:alert(1)",
    b"\xff\xfe\x00binary",
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Archived and unarchived records: `clicks` is in its table up to offset 5 of partition 0, `orders` has one
    record that does not decode."""
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("clicks", [b"%d" % number for number in range(5)], 0)
        driver.send("orders", [order(1), b"\xff\xff\xff", order(2)], 1)
        driver.archive()
        driver.send("clicks", [b"later", None, b""], 0)
    with Daemon(deployment) as daemon:
        yield daemon


def get(daemon: Daemon, path: str, status: int = 200) -> Any:
    reply = daemon.call("GET", f"/v1{path}")
    assert reply.status == status, reply.body
    page = daemon.call("GET", path)
    assert page.status == status, "the page of a view answers as its document"
    check_harmless(page)
    return reply.json()


def test_topics_are_listed_with_their_lag(daemon: Daemon) -> None:
    found = {one["topic"]: one for one in get(daemon, "/topics")["topics"]}
    assert set(found) == {"orders", "clicks", "files", "kept"}
    clicks = found["clicks"]
    assert (clicks["kind"], clicks["partition_count"], clicks["records"]) == ("iceberg", 2, 8)
    assert clicks["behind_records"] == 3
    assert clicks["behind_seconds"] >= 0
    assert clicks["last_commit"] is not None
    assert found["kept"]["last_commit"] is None


def test_topics_have_the_verdict_of_the_overview(daemon: Daemon) -> None:
    undecoded = {"undecoded": [{"topic": "orders", "records": 1}]}
    daemon.journal.add(Cycle("audit", 1, 0.1, "fine", "valid", undecoded))
    found = {one["topic"]: one for one in get(daemon, "/topics")["topics"]}
    of_orders = ("watch", "has 1 undecoded key or value")
    assert (found["orders"]["attention"], found["orders"]["attention_why"]) == of_orders
    assert (found["clicks"]["attention"], found["clicks"]["attention_why"]) == ("ok", None)
    for path in ("/topics", "/topics/orders"):
        page = daemon.call("GET", path).body.decode()
        assert 'class="pill watch">WATCH</span> has 1 undecoded key or value' in page
    assert get(daemon, "/topics/orders")["attention"] == "watch"


def test_a_topic_has_its_partitions_and_settings(daemon: Daemon) -> None:
    found = get(daemon, "/topics/clicks")
    assert found["table"] == "shop.clicks"
    assert found["partitions"][0]["stages"]["committed"] == {
        "offset": 5,
        "lag_records": 3,
        "lag_seconds": found["partitions"][0]["stages"]["committed"]["lag_seconds"],
    }
    assert found["settings"]["archive"]["table"] == "shop.clicks"
    assert {one["from"] for one in found["archive"]} == {"default"}
    assert {"name": "idle_max", "value": 30.0, "text": "30s", "from": "default"} in found["archive"]
    assert get(daemon, "/topics/kept")["archive"] == []
    assert "archive.idle_max" in check_harmless(daemon.call("GET", "/topics/clicks")).text
    assert get(daemon, "/topics/orders")["schema_version"] == 1
    assert found["traffic"] is None, "nothing was polled twice"
    report = daemon.lag()
    daemon.history.add(report, 1.0)
    daemon.history.add(report, 3.0, {"clicks": Accepted(records=8, bytes=500, seconds=2.0)})
    traffic = get(daemon, "/topics/clicks")["traffic"]
    assert (traffic["records_per_s"], traffic["bytes_per_s"]) == (4.0, 250.0)
    assert "4.0 records/s, 250 Bytes/s" in check_harmless(daemon.call("GET", "/topics/clicks")).text
    listed = {one["topic"]: one["traffic"] for one in get(daemon, "/topics")["topics"]}
    assert (listed["clicks"], listed["orders"]) == (traffic, None)
    assert "4.0 records/s, 250 Bytes/s" in check_harmless(daemon.call("GET", "/topics")).text
    assert "nowhere" in get(daemon, "/topics/nowhere", 404)["error"]["message"]


def test_messages_are_those_of_the_partition_in_order(daemon: Daemon) -> None:
    found = get(daemon, "/topics/clicks/messages?from=earliest")
    stored = daemon.stored("clicks")
    assert [one["offset"] for one in found["records"]] == list(range(8))
    for one in found["records"]:
        record = stored[0, one["offset"]]
        value = None if one["value"] is None else base64.b64decode(one["value"]["base64"])
        assert value == record.value
        assert one["from"] == ("archive" if one["offset"] < 5 else "intake") == record.source
    assert found["records"][6]["value"] is None
    assert found["records"][7]["value"]["bytes"] == 0
    assert (found["first"], found["stable"], found["next_offset"]) == (0, 8, 8)
    assert (found["next"], found["previous"]) == (None, None)


def test_lists_of_messages_go_on_without_a_gap_or_a_double(daemon: Daemon) -> None:
    offsets, start = [], "earliest"
    while True:
        found = get(daemon, f"/topics/clicks/messages?from={start}&limit=3")
        offsets += [one["offset"] for one in found["records"]]
        if found["next"] is None:
            break
        start = str(found["next"])
    assert offsets == list(range(8))
    newest = get(daemon, "/topics/clicks/messages?limit=3")
    assert [one["offset"] for one in newest["records"]] == [5, 6, 7]
    assert newest["previous"] == 2
    assert [one["offset"] for one in get(daemon, "/topics/clicks/messages?limit=3&from=2")["records"]] == [
        2,
        3,
        4,
    ]


def test_messages_from_the_places_that_commands_accept(daemon: Daemon) -> None:
    def begun(start: str) -> int:
        found: int = get(daemon, f"/topics/clicks/messages?from={start}")["from"]
        return found

    assert [begun(start) for start in ("end", "latest-0", "latest-3", "latest-99", "-36500d", "-0s")] == [
        *(8, 8, 5, 0, 0, 8)
    ]
    far = get(daemon, "/topics/clicks/messages?from=latest-100001", 400)["error"]["message"]
    assert far == "from latest-100001 is not accepted; N of latest-N is at most 100,000"


def test_messages_from_a_time_on(daemon: Daemon) -> None:
    records = daemon.stored("clicks")
    later = records[0, 5].timestamp_us
    assert later is not None
    assert later > (records[0, 4].timestamp_us or 0)
    time = get(daemon, "/topics/clicks/messages?from=5&limit=1")["records"][0]["timestamp"]
    assert get(daemon, f"/topics/clicks/messages?from={quote(time)}")["from"] == 5
    assert get(daemon, "/topics/clicks/messages?from=2100-01-01T00:00:00Z")["records"] == []


def test_messages_with_a_key_are_found_across_archive_and_intake(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(daemon.deployment) as driver, driver.application.intake.writer() as writer:
        for number in range(40):
            writer.send("kept", Record(b"k\xff" if number % 10 == 3 else b"other", b"%d" % number), 0)
        writer.flush()
    key = base64.b64encode(b"k\xff").decode()
    found = get(daemon, f"/topics/kept/messages?key_base64={quote(key)}")
    assert [one["offset"] for one in found["records"]] == [3, 13, 23, 33]
    assert (found["scanned"], found["next"]) == (40, None)
    first = get(daemon, f"/topics/kept/messages?key_base64={quote(key)}&limit=1")
    assert ([one["offset"] for one in first["records"]], first["next"], first["scanned"]) == ([3], 4, 4)
    # A search that reaches its bound says where it goes on.
    monkeypatch.setattr(reading, "SCANNED_MAX", 10)
    part = get(daemon, f"/topics/kept/messages?key_base64={quote(key)}&from=4")
    assert ([one["offset"] for one in part["records"]], part["next"], part["scanned"]) == ([13], 14, 10)
    assert get(daemon, "/topics/kept/messages?key=other&from=earliest")["scanned"] == 10


def test_the_newest_records_are_found_behind_aborted_ones(daemon: Daemon) -> None:
    intake = daemon.application.intake
    with intake.writer() as writer:
        for number in range(3):
            writer.send("kept", Record(None, b"%d" % number), 0)
        writer.flush()
        producer = Producer.open(writer, "ended")
        producer.begin()
        for _ in range(30):
            producer.send("kept", Record(None, b"aborted"), 0)
        producer.abort()
    found = get(daemon, "/topics/kept/messages?limit=2")
    assert [base64.b64decode(one["value"]["base64"]) for one in found["records"]] == [b"1", b"2"]


def test_messages_are_decoded_or_say_why_not(daemon: Daemon) -> None:
    found = get(daemon, "/topics/orders/messages?partition=1")["records"]
    assert found[0]["decoded"]["value"]["id"]
    assert "error" in found[1]["decoded"]["value"]
    assert base64.b64decode(found[1]["value"]["base64"]) == b"\xff\xff\xff"


def test_one_message_says_where_it_is(daemon: Daemon) -> None:
    archived = get(daemon, "/topics/clicks/messages/0/4")
    assert base64.b64decode(archived["record"]["value"]["base64"]) == b"4"
    assert archived["explain"]["table"]["added_by"]["snapshot_id"]
    assert archived["explain"]["archive"]["key"]
    waiting = get(daemon, "/topics/clicks/messages/0/5")
    assert waiting["explain"]["archive"] is None
    assert waiting["explain"]["intake"]["key"]
    missing = get(daemon, "/topics/clicks/messages/0/8")
    assert (missing["record"], missing["unreadable"]) == (None, None)
    assert get(daemon, "/topics/clicks/messages/7/0", 404)["error"]["type"] == "NotFound"


def test_a_damaged_archive_still_says_where_its_record_is(daemon: Daemon) -> None:
    key = get(daemon, "/topics/clicks/messages/0/2")["explain"]["archive"]["key"]
    archive = daemon.deployment.data / key
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    found = get(daemon, "/topics/clicks/messages/0/2")
    assert found["record"] is None
    assert found["unreadable"]
    assert found["explain"]["archive"]["key"]
    assert get(daemon, "/topics/clicks/messages?from=0", 500)["error"]["message"]


@pytest.mark.parametrize(
    "query",
    [
        "partition=-1",
        "partition=x",
        "partition=٣",
        "limit=0",
        "limit=501",
        "limit=1e9",
        "from=yesterday",
        "from=-1",
        "key_base64=%%%",
        "key=a&key_base64=YQ==",
        f"partition={10**30}",
    ],
)
def test_wrong_parameters_are_refused_with_what_is_accepted(daemon: Daemon, query: str) -> None:
    message = get(daemon, f"/topics/clicks/messages?{quote(query, safe='=&')}", 400)["error"]["message"]
    assert message


@pytest.mark.parametrize(
    ("field", "typed", "status", "words"),
    [
        ("from", "yesterday", 400, "is not accepted; give earliest"),
        ("from", "2026-13-45T00:00:00Z", 400, "is not accepted; give earliest"),
        ("from", "2026-11-27", 400, "no complete time"),
        ("from", "latest-100001", 400, "at most 100,000"),
        ("partition", "x", 400, "no whole number"),
        ("partition", "7", 404, "it has 2, numbered from 0"),
        ("limit", "501", 400, "from 1 to 500"),
        ("key_base64", "%", 400, "no base64"),
        ("from", '"><script>alert(1)</script>', 400, "is not accepted; give earliest"),
    ],
)
def test_a_wrong_value_comes_back_in_the_form(
    daemon: Daemon, field: str, typed: str, status: int, words: str
) -> None:
    asked = {"partition": "1", "from": "3", "limit": "20", "key": "k", field: typed}
    if field == "key_base64":
        del asked["key"]
    reply = daemon.call("GET", f"/topics/clicks/messages?{urlencode(asked)}")
    assert reply.status == status
    seen = check_harmless(reply)
    for name, value in asked.items():
        assert seen.fields[name]["value"] == value
        described = "problem" if name == field else None
        assert seen.fields[name].get("aria-describedby") == described, name
    assert list(seen.alerts) == ["problem"]
    assert words in seen.alerts["problem"]


def test_a_wrong_value_without_a_field_is_said_in_the_form(daemon: Daemon) -> None:
    reply = daemon.call("GET", "/topics/clicks/messages?key=a&key_base64=YQ==")
    seen = check_harmless(reply)
    assert reply.status == 400
    assert (seen.fields["key"]["value"], seen.fields["key_base64"]["value"]) == ("a", "YQ==")
    assert not any("aria-describedby" in one for one in seen.fields.values())
    assert "both given" in seen.alerts["problem"]
    assert check_harmless(daemon.call("GET", "/topics/nowhere/messages")).fields == {}, "no topic, no form"


@pytest.mark.parametrize(
    ("query", "field", "status"), [("limit=0", "limit", 400), ("topic=nowhere", "topic", 404)]
)
def test_a_wrong_filter_of_undecoded_records_comes_back(
    daemon: Daemon, query: str, field: str, status: int
) -> None:
    reply = daemon.call("GET", f"/dead-letters?{query}")
    assert reply.status == status
    seen = check_harmless(reply)
    assert seen.fields[field]["value"] == query.partition("=")[2]
    assert seen.fields[field]["aria-describedby"] == "problem"
    assert seen.alerts["problem"]


@pytest.mark.parametrize("name", ["key", "key_base64"])
def test_pages_of_a_search_keep_the_search(daemon: Daemon, name: str) -> None:
    key = "user 3&+%"
    with daemon.application.intake.writer() as writer:
        for number in range(3):
            writer.send("kept", Record(key.encode(), b"%d" % number), 0)
        writer.flush()
    typed = key if name == "key" else base64.b64encode(key.encode()).decode()
    asked = {"partition": "0", "from": "1", "limit": "1", name: typed}
    seen = check_harmless(daemon.call("GET", f"/topics/kept/messages?{urlencode(asked)}"))
    assert {field: seen.fields[field]["value"] for field in asked} == asked
    assert "1 record from offset 1 on; 1 record searched." in seen.text
    queries = [link.partition("?")[2] for link in seen.links if link.startswith("/topics/kept/messages?")]
    pages = [dict(parse_qsl(query, strict_parsing=True)) for query in queries]
    kept = [page for page in pages if "from" in page]
    assert {page["from"] for page in kept} == {"earliest", "0", "2"}
    assert all(page | {"from": "1"} == asked for page in kept)
    newest = [page for page in pages if "from" not in page]
    assert {"partition": "0", "limit": "1"} in newest
    assert {"partition": "0", "limit": "1", "refresh": "5"} in newest
    assert "Newest of any key, every 5 s" in seen.text, "a search goes forward, so they have no key"
    assert "Search on" in seen.text


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_records_are_shown_and_do_nothing(daemon: Daemon, hostile: bytes) -> None:
    with daemon.application.intake.writer() as writer:
        headers = ((hostile.decode("utf-8", "replace"), hostile), ("null", None))
        writer.send("kept", Record(hostile, hostile, headers=headers), 0)
        writer.flush()
    found = get(daemon, "/topics/kept/messages")
    assert base64.b64decode(found["records"][0]["value"]["base64"]) == hostile
    assert base64.b64decode(get(daemon, "/topics/kept/messages/0/0")["record"]["key"]["base64"]) == hostile
    check_harmless(daemon.call("GET", f"/topics/kept/messages?key={quote(hostile)}"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_addresses_are_shown_and_do_nothing(daemon: Daemon, hostile: bytes) -> None:
    name = quote(hostile, safe="")
    for path in (f"/topics/{name}", f"/topics/{name}/messages", f"/topics/{name}/messages/0/0"):
        reply = daemon.call("GET", path)
        assert reply.status == 404, path
        # A name with a slash is no address of a topic, and its answer is that of any other address.
        if b"/" in hostile:
            assert reply.headers["content-type"] == "application/json"
            assert reply.headers["x-content-type-options"] == "nosniff"
        else:
            check_harmless(reply)
    check_harmless(daemon.call("GET", f"/topics/clicks/messages?from={name}&limit={name}&partition={name}"))


def test_long_values_are_cut_in_a_list_and_whole_alone(daemon: Daemon) -> None:
    value = "€".encode() * 100_000
    with daemon.application.intake.writer() as writer:
        writer.send("kept", Record(None, value), 0)
        writer.flush()
    found = get(daemon, "/topics/kept/messages")["records"][0]["value"]
    assert (found["bytes"], found["cut"]) == (len(value), True)
    assert set(found["text"]) == {"€"}, "cut inside of a character, and still text"
    alone = get(daemon, "/topics/kept/messages/0/0")["record"]["value"]
    assert (base64.b64decode(alone["base64"]), alone["cut"]) == (value, False)


def test_large_records_end_a_list_early(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ANSWER_BYTES_MAX", 10)
    with daemon.application.intake.writer() as writer:
        for _ in range(5):
            writer.send("kept", Record(None, b"x" * 6), 0)
        writer.flush()
    offsets, start = [], "earliest"
    while True:
        found = get(daemon, f"/topics/kept/messages?from={start}")
        assert len(found["records"]) <= 2
        offsets += [one["offset"] for one in found["records"]]
        if found["next"] is None:
            break
        start = found["next"]
    assert offsets == list(range(5))


def test_reads_that_hang_have_a_bound_and_do_not_delay_the_end(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_api, "OPEN_MAX", read_api.THREADS + 1)
    monkeypatch.setattr(read_api, "ANSWER_S", 0.2)
    begun, release = threading.Semaphore(0), threading.Event()

    def hanging(_name: str) -> dict[str, Any]:
        begun.release()
        assert release.wait(60)
        return {}

    monkeypatch.setattr(daemon.face.reads, "topic", hanging)
    try:
        for _ in range(read_api.OPEN_MAX):
            assert daemon.call("GET", "/v1/topics/clicks").status == 503, "not within its time"
        assert daemon.call("GET", "/v1/topics/clicks").status == 429, "what hangs counts as open"
        assert daemon.call("GET", "/healthz").status == 200
        for _ in range(read_api.THREADS):
            assert begun.acquire(timeout=60)
        assert not begun.acquire(blocking=False), "more wait for their turn"
        hung = [one for one in threading.enumerate() if one.name == "http-read"]
        assert len(hung) == read_api.OPEN_MAX
        assert all(one.daemon for one in hung), "the interpreter does not wait for them"
    finally:
        release.set()
    monkeypatch.undo()
    until("they are over", lambda: daemon.call("GET", "/v1/topics/clicks").status == 200)


def test_answers_have_places_until_their_bytes_exist(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_api, "OPEN_MAX", 3)
    begun, release = threading.Semaphore(0), threading.Event()
    rendered = Console._rendered

    def slow(console: Console, request: Any, template: str, values: Any) -> str:
        if template != "refused.html":
            begun.release()
            assert release.wait(60)
        return rendered(console, request, template, values)

    monkeypatch.setattr(Console, "_rendered", slow)
    statuses: list[int] = []

    def ask() -> None:
        # The question below has a place for a moment, and this one may be refused then.
        while (status := daemon.call("GET", "/topics").status) == 429 and not release.is_set():
            pass
        statuses.append(status)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    try:
        assert begun.acquire(timeout=60)
        until("all have places", lambda: daemon.call("GET", "/v1/topics").status == 429)
        page = daemon.call("GET", "/topics")
        assert page.status == 429, "a refusal needs no place and no turn"
        check_harmless(page)
    finally:
        release.set()
        for thread in asking:
            thread.join(60)
    assert statuses == [200] * 3
    assert daemon.call("GET", "/v1/topics").status == 200


def test_a_read_without_a_thread_takes_no_place(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", none)
        for _ in range(2 * read_api.OPEN_MAX):
            assert daemon.call("GET", "/v1/topics").status == 503
    assert daemon.call("GET", "/v1/topics").status == 200


def test_topics_are_listed_in_parts(daemon: Daemon) -> None:
    first = get(daemon, "/topics?limit=3")
    assert ([one["topic"] for one in first["topics"]], first["left"], first["next"]) == (
        ["clicks", "files", "kept"],
        1,
        "kept",
    )
    last = get(daemon, "/topics?limit=3&after=kept")
    assert ([one["topic"] for one in last["topics"]], last["left"], last["next"]) == (["orders"], 0, None)


def test_decoded_messages_have_a_bound(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ANSWER_BYTES_MAX", 40)
    monkeypatch.setattr(reading, "_size", lambda _record: 0)
    records = get(daemon, "/topics/orders/messages?partition=1&from=earliest")["records"]
    assert records[0]["decoded"]["value"]["id"]
    assert "the list is full" in records[2]["decoded"]["value"]["error"]
    monkeypatch.setattr(reading, "DECODED_BYTES_MAX", 5)
    alone = get(daemon, "/topics/orders/messages/1/0")["record"]
    assert "not decoded here" in alone["decoded"]["value"]["error"]
    assert alone["value"]["bytes"] > 5


def test_every_view_has_a_page_and_a_document() -> None:
    assert len({view.path for view in VIEWS}) == len(VIEWS)
    for view in VIEWS:
        template = Path(reading.__file__).parents[1] / "web" / "templates" / "console"
        assert (template / (view.template or f"{view.name}.html")).is_file(), view.name


def test_the_style_comes_from_this_port(daemon: Daemon) -> None:
    reply = daemon.call("GET", "/style.css")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/css")
    assert b"url(" not in reply.body
    assert b"@import" not in reply.body
