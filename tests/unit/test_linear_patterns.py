"""Every regular expression of the product takes time in proportion to its text, also for the worst text."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.growth import assert_linear
from tests.support.patterns import Pattern, patterns

Worst = tuple[str, str, str]
"""Start, repeated part, end."""

_NAME: tuple[Worst, ...] = (("", "a", "!"), ("", "a", ""))
_HEX: tuple[Worst, ...] = (("", "a", "!"), ("", "0", ""))
_DIGITS: tuple[Worst, ...] = (("", "1", "!"),)
_HOST: tuple[Worst, ...] = (("", "a", "/"), ("[", ":", ""), ("a:", "1", "!"), ("", "a:", ""), ("", "[", ""))
_DECIMAL: tuple[Worst, ...] = (
    ("decimal(", "1", ""),
    ("decimal(1,", " ", ""),
    ("decimal(", " ", "!"),
    ("", "decimal(", ""),
)

WORST: dict[str, tuple[Worst, ...]] = {
    "archiver.web.markdown._HEADING": (("# ", "a", "\n"), ("", "#", "")),
    "archiver.web.markdown._ANCHOR": (('<a id="', "a", ""), ("", '<a id="', "")),
    "archiver.web.markdown._ITEM": (("", "9", ""), ("- ", "a", "\n")),
    "archiver.web.markdown._DIVIDER": (("|", "-", ""), ("", "|", "a")),
    "archiver.web.markdown._INLINE": (
        ("", "[", ""),
        ("", "[](", ""),
        ("", "[a](b", ""),
        ("[", "a", ""),
        ("[a](", "b", ""),
        ("", "`", ""),
        ("`", "a", ""),
        ("", "*", ""),
    ),
    "archiver.catalog.engines._unglobbed": (("", "[", ""), ("", "a", "")),
    "archiver.catalog.engines._address": (("https://", "a", "@"), ("", "https://", "")),
    "archiver.cli.unread_config._HOST": _NAME,
    "archiver.web.console._WEIGHT": (("", "q=", ""), ("", "q=0.00", "")),
    "archiver.web.console._CONTROL": (("", "a", ""), ("", "\x80", "\x00")),
    "archiver.config.kafka_listener._is_wildcard": (("", "0", ""), ("", "0.", "a"), ("", "*", "")),
    "archiver.config.topics._NOT_IN_TABLE": _NAME,
    "archiver.schema.avro.model._NAME": _NAME,
    "archiver.schema.json.model._TITLE": _NAME,
    "archiver.schema.json.mapping._OTHER": (("", "/", ""), ("", "a", "")),
    "archiver.schema.json.complete_engine._BRACKETS": (
        ("", '"', ""),
        ("", "a", ""),
        ('"', "\\", ""),
        ('"', '\\"', ""),
        ("", '\\"', ""),
        ("", "[", ""),
        ('"', "a", ""),
    ),
    "archiver.schema.json.complete_engine._HALF": (("", "\\u", ""), ("", "\\", ""), ("", "\\ud", "")),
    "archiver.schema.json.complete_engine._DATE": _DIGITS,
    "archiver.schema.json.complete_engine._MOMENT": (*_DIGITS, ("2026-01-01T00:00:00.", "1", "!")),
    "archiver.schema.json.fast_engine._ROW": (
        ("", "in row ", ""),
        ("in row ", "1", ""),
        ("", "in row 1", ""),
    ),
    "archiver.app.offset_targets._LATEST": (("latest-", "1", "!"), ("", "latest-", "")),
    "archiver.app.offset_targets._AGO": (("-", "1", "!"), ("-1", "a", "!"), ("", "-1a", "")),
    "archiver.app.offset_targets._INCOMPLETE_TIME": (
        ("2026-01-01 00:00:00.", "1", "!"),
        ("", "2026-01-01", ""),
    ),
    "archiver.daemon.operations._OFFSET": (*_DIGITS, ("1:", "1", "!")),
    "archiver.kafka.membership._RACK": (("", ",rack=", ""), ("rack=", "a", ""), ("", " rack=a", "!")),
    "archiver.catalog.iceberg.remote_limits._CHANGES_A_PATH": _NAME,
    "archiver.catalog.iceberg.remote_limits._ROOTED_URI": (("file:", "/", ""), ("file:/", "a", "")),
    "archiver.catalog.iceberg.remote_properties._HOST_PART": _NAME,
    "archiver.catalog.iceberg.remote_properties._NAME": _NAME,
    "archiver.catalog.iceberg.remote_properties._PREFIX": (
        *_NAME,
        ("", "a/", ""),
        ("", "a/", "!"),
        ("", "/", ""),
        ("", "%2F", ""),
    ),
    "archiver.catalog.iceberg.remote_properties._SEPARATOR": _NAME,
    "archiver.catalog.iceberg.remote_properties._VISIBLE": (*_NAME, ("", "\n", ""), ("", " ", "\n")),
    "archiver.catalog.iceberg.auth._TOKEN": _NAME,
    "archiver.catalog.tables._PART": _NAME,
    "archiver.control_topic.kafka_topic._STATE": (
        ("", " (after 1ms in state ", ""),
        (" (after ", "1", ""),
        (" (after 1ms in state ", "a", ""),
        ("", " (after 1ms in state )", "!"),
    ),
    "archiver.events.json_form._FIELD_ID": _DIGITS,
    "archiver.events.partitions._DECIMAL": _DECIMAL,
    "archiver.events.partitions._FIXED": (("fixed[", " ", ""), ("fixed[1", " ", "")),
    "archiver.events.codec._ESCAPED": (("", "\\", ""), ("", "a", "")),
    "archiver.events.partitions._TRUNCATE": (("truncate[", "1", ""),),
    "archiver.events.partitions._BUCKET": (("bucket[", "1", ""),),
    "archiver.events.json_form._TEXT": (("", "0", ""), ("2026-01-01T00:00:00.", "0", "Z")),
    "archiver.spark.java._VERSION": (
        ("", 'version "', ""),
        ('version "', "1", ""),
        ('version "', "1.", ""),
        ("", 'version "1', ""),
    ),
    "archiver.publish.scope._PARTITION": _DIGITS,
    "archiver.log.etcd.log_store._NAME": _NAME,
    "archiver.log.sqlite._NAME": _NAME,
    "archiver.log.tail_marker._TEXT": _DIGITS,
    "archiver.objects.cluster._CLUSTER_ID": _HEX,
    "archiver.objects.key_rules._CONTROL": _NAME,
    "archiver.objects.paths._TOPIC_ID": _HEX,
    "archiver.objects.paths._FILE_ID": _HEX,
    "archiver.objects.paths._PROBE": (("Archiver_Probe_", "a", ""),),
    "archiver.objects.paths._LOG": _NAME,
    "archiver.objects.paths._INTAKE": (("intake/", "a", ""), ("", "intake/", ""), ("intake/a/", "a", "/")),
    "archiver.objects.paths._ARCHIVE": (("archive/", "0", ""), ("", "archive/", "")),
    "archiver.objects.paths._CHECKPOINT": (("checkpoint/a/v", "0", ""), ("", "checkpoint/", "")),
    "archiver.objects.paths._HISTORY": (("shelf/intake/", "0", ""),),
    "archiver.query.columns._DECIMAL": _DECIMAL,
    "archiver.query.json_values._TOKEN": (
        ("", '"', ""),
        ('"', "a", ""),
        ('"', '""', ""),
        ("", "'", ""),
        ("'", "a", ""),
        ("", "a", "("),
        ("", "(", ""),
        ("", " ", ""),
        ("", "'\"", ""),
    ),
    "archiver.query.columns._FIXED": (("fixed[", "1", ""),),
    "archiver.query.table_names._PIECE": (
        ("", '"', ""),
        ("", "a", ""),
        ('"', '\\"', ""),
        ("", '\\"', ""),
        ("", '"type":"a"', ""),
        ('"a', '":', ""),
        ("", "{", ""),
    ),
    "archiver.query.duck._unglobbed": (("", "[", ""), ("", "a", "")),
    "archiver.runtime.redaction._PASSWORD_IN_URL": (
        ("", "a", ""),
        ("", "a://", ""),
        ("", "a://b:", ""),
        ("", "://", ""),
        ("a://", "b", ""),
        ("a://", ":", ""),
        ("a://b:", "c", ""),
        ("", "a://b:c@", ""),
        ("", "a:", ""),
        ("", "a+", "://b:c@"),
    ),
    "archiver.runtime.redaction._PASSWORD_CUT_OFF": (
        ("", "a", ""),
        ("", "a://b:", ""),
        ("", "://", ""),
        ("a://", ":", '"'),
        ("a://b:", "c", '"'),
    ),
    "archiver.runtime.redaction._USER_OF_URL": (
        ("", "a", ""),
        ("a://", ":", ""),
        ("a://", "b", ""),
        ("a://b:", "c:", ""),
        ("", "a://b:", ""),
    ),
    "archiver.runtime.redaction._PARAMETER": (
        ("", "?", ""),
        ("?", "password", ""),
        ("", "?password", ""),
        ("", "?password=", ""),
    ),
    "archiver.runtime.redaction._PARAMETER_VALUE": _NAME,
    "archiver.runtime.redaction._SECRET_NAME": (
        ("", "pass", ""),
        ("", "api_", ""),
        ("", "access", ""),
        ("", "a", ""),
    ),
    "archiver.runtime.redaction._lower_hex": (("", "%", ""), ("", "%AA", ""), ("", "%A", "")),
    "archiver.registry.compile._ROOT": (("", "1", ""), ("", "1/", "")),
    "archiver.registry.compile._CHATTER": (
        ("", " ", "a"),
        ("", "\n", "a"),
        ("", ": warning:", ""),
        ("I", "1", ""),
    ),
    "archiver.registry.subjects._PLAIN": (("", "/", ""), ("", "a", "")),
    "archiver.runtime.rfc3339._TIME": (("2026-01-01T00:00:00.", "0", ""), ("", "0", "")),
    "archiver.schema.columns._arrow_primitive": _DECIMAL,
    "archiver.schema.protobuf.column_names._NAME": _NAME,
    "archiver.config.storage._BUCKET": _NAME,
    "archiver.config.storage._PREFIX": (*_NAME, ("", "a/", "!"), ("", "a/", "")),
    "archiver.config.storage._REGION": _NAME,
    "archiver.config.groups._SECRET_NAME": (
        ("header.", "a", ""),
        ("header.", "api", ""),
        ("", "header.", ""),
        ("", "private", ""),
    ),
    "archiver.config.groups._USER_IN_URL": (("", "://", ""), ("://", "a", ""), ("", "://a", "")),
    "archiver.config.groups._SQL_SERVER": (
        ("", "a", ""),
        ("", "a+", ""),
        ("a://", ":", ""),
        ("a://", "a:", "\n"),
        ("a://", "@", "\n"),
        ("a://", "/", "?\n"),
        ("a://[", "a", ""),
        ("a://b:c@d?", "a", "\n"),
        ("a://", ":@", "\n"),
    ),
    "archiver.config.groups._ENDPOINT": (("", ".endpoint", "a"), ("", ".", "")),
    "archiver.config.groups._CONTROL": _NAME,
    "archiver.config.groups._prepare": (("", "sqlite:///", ""),),
    "archiver.config.groups._LOCAL_MASTER": (("", "local-cluster", ""),),
    "archiver.config.kafka._SECRET": (
        ("", "token", ""),
        ("", "token.endpoint.", ""),
        ("", ".pem", "a"),
        ("", "pass", ""),
    ),
    "archiver.config.kafka._LOST": (*_NAME, ("a:", "1", "")),
    "archiver.config.yaml_loader": (
        ("", "0", "!"),
        ("", "1", "."),
        ("1.", "1", "e"),
        ("1.1e", "1", "!"),
        ("", "true", ""),
    ),
    "archiver.config.telemetry._HEADER": _NAME,
    "archiver.config.types._QUANTITY": (("", "1", "!"), ("1", " ", "!"), ("1.", "1", "!"), ("1", "a", "!")),
    "archiver.config.types._TOPIC": _NAME,
    "archiver.config.types._TABLE_PART": _NAME,
    "archiver.config.types._MESSAGE": (*_NAME, ("", "a.", ""), ("", "a.", "!"), ("", ".", "")),
    "archiver.config.types._SCHEME": (*_NAME, ("", "a:", "")),
    "archiver.config.types._LISTEN": _HOST,
    "archiver.config.types._COLUMN": _NAME,
    "archiver.config.types._HOST_AND_PORT": _HOST,
    "archiver.spark.connect._SPLITS": (
        ("", "Range (0, 1, step=1, splits=", ""),
        ("Range (0, 1, step=1, splits=", "1", ""),
    ),
    "archiver.spark.session._NO_MASTER": (("", "stopped ", ""), ("", "All masters are ", "")),
    "archiver.spark.worker_checks._UNFIT": (
        ("", "Cannot run program", ""),
        ("Cannot run program", "error=", ""),
        ("", "Cannot run program error=", ""),
    ),
    "archiver.spark.worker_checks._SHORTAGE": (
        ("", "Cannot run program", ""),
        ("Cannot run program", "error=", ""),
        ("", "Cannot run program error=", ""),
        ("", "a.", ""),
        ("", "a", ""),
        ("", "a.a", ": [Errno 1]"),
        ("", "Caused by: ", ""),
    ),
    "archiver.spark.worker_checks._HANDLED": (
        ("", "Traceback (most recent call last):", ""),
        ("Traceback (most recent call last):", "T", ""),
        (
            "Traceback (most recent call last):",
            "The above exception was the direct cause of the following",
            "",
        ),
    ),
    "archiver.web.app._HOST": _HOST,
    "archiver.web.openapi.CHALLENGE": _HEX,
    "archiver.web.connection._BARE_LINE_FEED": (("", "\n", ""), ("", "\r", "")),
    "archiver.web.metrics._TOPIC_RECORDS": (("/v1/topics/", "a", ""), ("", "/v1/topics/", "")),
    "archiver.registry.subjects._BASE64": (
        ("", "A", "!"),
        ("A", " ", "!"),
        ("A=", " ", "!"),
        ("", " ", "="),
    ),
    "archiver.spark.environment._SECRET_NAME": (("", "TOKE", ""), ("", "_", ""), ("", "_API_KEY", "a")),
    "intake.log.sequencer._TOPIC_NAME": _NAME,
    "intake.sources.kafka.client_log._PREFIX": (
        ("", "[thrd:a]: ", ""),
        ("", "a", "#"),
        ("", "a#producer-1: ", "a"),
    ),
    "intake.sources.kafka.client_log._VARIABLE": (
        ("", "1", ""),
        ("", "1/", ""),
        ("(after 1ms in state ", "a", ""),
        ("", "(after 1ms in state a", ""),
        ("", "(1 identical", ""),
        (":", "1", ""),
    ),
    "intake.sources.kafka.mirror._NUMBER": _DIGITS,
    "intake.sources.files.source._ESCAPED": (("", "[", ""), ("", "[[]", "")),
}

MADE_AT_RUN_TIME = {
    "archiver.runtime.redaction._any_of": "alternatives without repetition; test_linear_entries.py runs it",
    "archiver.config.kafka._check_pattern": "a pattern of the configuration, compiled to see that it is one",
    "archiver.config.kafka.matches": "a pattern of the configuration, on the name of a Kafka topic, which has at most 249 characters",
    "intake.sources.files.source.__init__": "a glob of the configuration, on the name of a file, which has at most 255 bytes",
}
"""Patterns whose text is not in the source, and why text from outside cannot make them slow."""


def test_every_pattern_is_in_this_list() -> None:
    found = {one.key for one in patterns() if one.compiled is not None}
    made = {one.key for one in patterns() if one.compiled is None}
    assert found == set(WORST), "give each regular expression its worst text here"
    assert made == set(MADE_AT_RUN_TIME)


@pytest.mark.parametrize(
    "pattern", [one for one in patterns() if one.compiled is not None], ids=lambda one: one.key
)
def test_a_pattern_is_linear_on_its_worst_text(pattern: Pattern) -> None:
    for start, repeated, end in WORST[pattern.key]:
        for method in sorted(pattern.methods):
            assert_linear(
                _use(pattern, method),
                lambda length: start + repeated * (length // len(repeated)) + end,  # noqa: B023
            )


def test_a_quadratic_pattern_is_found() -> None:
    # A quadratic pattern for the password of a URL.
    old = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'\"<>]*:)[^\s/@'\"<>]+(?=@)")
    with pytest.raises(AssertionError, match=r"characters take \d+\.\d times what an eighth"):
        assert_linear(lambda text: old.sub("", text), lambda length: "a" * length)


def _use(pattern: Pattern, method: str) -> Callable[[str], object]:
    compiled = pattern.compiled
    assert compiled is not None
    # All matches are requested, as `sub` and `finditer` do: a search that ends at the first one shows less.
    return (
        (lambda text: sum(1 for _ in compiled.finditer(text)))
        if method == "search"
        else getattr(compiled, method)
    )
