"""Templates of topics: how the file states them, and which settings a topic of the log gets from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import Settings, load_settings
from archiver.daemon.reload import plan_reload
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.ids import TopicId
from intake.log.fold import TopicState
from intake.topic_templates import compose
from tests.support.schema.orders import DESCRIPTOR_SET

ARCHIVE = {"kind": "iceberg", "catalog": "local", "table": "shop.{topic}"}


def load(tmp_path: Path, *topics: dict[str, Any], **more: Any) -> Settings:
    (tmp_path / "shop.binpb").write_bytes(DESCRIPTOR_SET)
    path = tmp_path / "archiver.yaml"
    document = {
        "cluster": "test",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "metadata.db"}},
        "catalogs": [{"name": "local", "type": "sql", "uri": "sqlite:///catalog.db"}],
        "topics": list(topics),
        **more,
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return load_settings(path, {})


def state(name: str, partitions: int = 1, *, mirrored: bool = False) -> TopicState:
    return TopicState(TopicId(name.encode().hex()), name, partitions, 0, mirrored)


# --- the file


def test_an_entry_with_a_pattern_is_a_template_and_the_first_that_matches_is_used(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        {"pattern": "shop.orders.*", "retention": "30d"},
        {"name": "shop.orders.old", "partitions": 3},
        {"pattern": "shop.*", "partitions": 4},
        {"pattern": "exact"},
    )
    assert [topic.name for topic in settings.topics] == ["shop.orders.old"]
    assert [one.pattern for one in settings.templates] == ["shop.orders.*", "shop.*", "exact"]
    found = {
        name: None if (one := settings.template(name)) is None else one.pattern
        for name in ("shop.orders.new", "shop.clicks", "shop.orders.old", "exact", "exactly", "other", "shop")
    }
    assert found == {
        "shop.orders.new": "shop.orders.*",
        "shop.clicks": "shop.*",
        "shop.orders.old": None,
        "exact": "exact",
        "exactly": None,
        "other": None,
        "shop": None,
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"pattern": "a*b"}, r"topics\[1\].pattern: "),
        ({"pattern": "a*", "name": "a"}, r"topics\[1\].name: there is no such key"),
        ({"pattern": "a*", "partitions": 0}, r"topics\[1\].partitions: "),
        (
            {"pattern": "a*", "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.a"}},
            r"topics\[1\].archive.table: needs \{topic\}",
        ),
        ({"pattern": "a*", "archive": ARCHIVE | {"table": "{topic}"}}, r"archive.table: .* not a table"),
        ({"pattern": "a*", "archive": ARCHIVE | {"catalog": "nix"}}, r"topics\[1\].archive.catalog: there is no"),
        ({"pattern": "a*", "archive": {"idle_max": "long"}}, r"topics\[1\].archive.idle_max: "),
        (
            {"pattern": "a*", "value": {"descriptor_set": "shop.binpb", "message": "shop.Order", "validate": "dlq", "dlq": "nix"}},
            r"topics\[1\].value.dlq: there is no topic nix",
        ),
        ({"pattern": "a*", "value": {"subject": "{topic}-value"}}, r"topics\[1\].value.subject: there is no registry"),
        ({"pattern": "before*"}, r"topics\[1\].pattern: topics\[0\] has the pattern"),
    ],
)  # fmt: skip
def test_a_wrong_template_is_reported_at_its_place_in_the_file(
    tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigInvalid, match=problem) as raised:
        load(tmp_path, {"pattern": "before*"}, entry, {"name": "last", "partitions": 1})
    # Nothing is reported about the valid entries around it.
    assert "topics[2]" not in str(raised.value)
    assert "problems" not in str(raised.value)


def test_problems_of_topics_behind_a_template_have_the_position_of_the_file(tmp_path: Path) -> None:
    twice = {"name": "a", "partitions": 1}
    with pytest.raises(
        ConfigInvalid, match=r"topics\[2\].name: the topic a is defined twice \(topics\[1\]\)"
    ):
        load(tmp_path, {"pattern": "before*"}, twice, twice)


def test_the_internal_name_of_the_templates_is_no_key_of_the_file(tmp_path: Path) -> None:
    for key in ("templates", "topics.pattern"):
        with pytest.raises(ConfigInvalid, match=r"there is no (such )?key"):
            load(tmp_path, **{key: [{"pattern": "a*"}]})


# --- the settings of a topic


def test_a_topic_of_the_log_gets_the_settings_of_its_template(tmp_path: Path) -> None:
    value = {"subject": "{topic}-value", "recursion_depth": 1}
    settings = load(
        tmp_path,
        {"name": "literal", "partitions": 1},
        {
            "pattern": "shop.*",
            "retention": "30d",
            "value": value,
            "schema_change": "refuse",
            "archive": ARCHIVE | {"idle_max": "5s", "partition_by": ["hour"]},
        },
        schema_registry={"confluent": {"url": "http://localhost:1"}},
    )
    composed = compose(settings, [state("literal"), state("shop.new-orders", 5), state("other")])
    assert composed.refused == {}
    assert [topic.name for topic in composed.settings.topics] == ["literal", "shop.new-orders"]
    made = composed.settings.topic("shop.new-orders")
    assert made is not None
    assert made.template == "shop.*"
    assert (made.partitions, made.retention, made.schema_change) == (5, 30 * 86400, "refuse")
    assert made.value is not None
    assert (made.value.subject, made.value.recursion_depth) == ("shop.new-orders-value", 1)
    archive = made.archive
    assert (archive.table, archive.catalog, archive.kind) == ("shop.shop_new_orders", "local", "iceberg")
    assert (archive.idle_max, archive.partition_by, archive.min_bytes) == (5, ("hour",), None)
    literal = composed.settings.topic("literal")
    assert literal is not None
    assert literal.template is None


def test_without_templates_nothing_is_composed(tmp_path: Path) -> None:
    settings = load(tmp_path, {"name": "a", "partitions": 1})
    assert compose(settings, [state("b")]).settings is settings


def test_of_two_topics_with_one_table_the_earlier_has_it(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        {
            "name": "fixed",
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.TAKEN"},
        },
        {"pattern": "*", "archive": ARCHIVE},
    )
    composed = compose(settings, [state("a.b"), state("a_b"), state("A-B"), state("taken"), state("c")])
    assert [topic.name for topic in composed.settings.topics] == ["fixed", "a.b", "c"]
    assert {name: why.partition("belongs to topic ")[2].split(";")[0] for name, why in composed.refused.items()} == {
        "a_b": "a.b",
        "A-B": "a.b",
        "taken": "fixed",
    }  # fmt: skip


def test_a_name_that_makes_no_valid_table_is_refused(tmp_path: Path) -> None:
    settings = load(tmp_path, {"pattern": "*", "archive": ARCHIVE})
    composed = compose(settings, [state("n" * 249), state("n" * 255)])
    assert [topic.name for topic in composed.settings.topics] == ["n" * 249]
    assert "at most 255" in composed.refused["n" * 255]


def test_a_mirrored_topic_matches_too_but_not_with_rules_for_records(tmp_path: Path) -> None:
    schema = {"descriptor_set": "shop.binpb", "message": "shop.Order"}
    settings = load(
        tmp_path,
        {"pattern": "strict.*", "value": schema | {"validate": "reject"}},
        {"pattern": "*", "value": schema, "archive": ARCHIVE},
    )
    composed = compose(settings, [state("m", 7, mirrored=True), state("strict.m", 7, mirrored=True)])
    made = composed.settings.topic("m")
    assert made is not None
    assert made.mirrored
    assert made.partitions == 0
    assert composed.settings.topic("strict.m") is None
    assert "keeps every record unchanged" in composed.refused["strict.m"]


# --- a reload


def test_a_reload_replaces_templates_and_names_what_changed(tmp_path: Path) -> None:
    a, b, named = {"pattern": "a*"}, {"pattern": "b*"}, {"name": "n", "partitions": 1}
    before = load(tmp_path, a, b, named)
    after = load(tmp_path, {"pattern": "c*"}, a | {"retention": "30d"}, named)
    plan = plan_reload(before, after)
    assert plan.settings.templates == after.templates
    assert sorted(map(str, plan.applied)) == [
        "topics.a* (pattern).retention: (not set) -> 30d",
        "topics.b* (pattern): a template -> (absent)",
        "topics.c* (pattern): (absent) -> a new template",
    ]
    swapped = plan_reload(before, load(tmp_path, b, a, named))
    assert [str(one) for one in swapped.applied] == ["topics: a*, b* -> b*, a*"]


def test_a_template_with_a_new_catalog_needs_a_restart(tmp_path: Path) -> None:
    before = load(tmp_path, {"pattern": "a*"})
    new = {"name": "new", "type": "sql", "uri": "sqlite:///new.db"}
    after = load(
        tmp_path,
        {"pattern": "a*", "archive": ARCHIVE | {"catalog": "new"}},
        {"pattern": "b*", "archive": ARCHIVE | {"catalog": "new"}},
        catalogs=[new],
    )
    plan = plan_reload(before, after)
    assert plan.settings.templates == before.templates
    assert {"topics.a*", "topics.b*"} <= {one.key for one in plan.refused}
