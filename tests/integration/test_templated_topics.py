"""Topics that no entry of the configuration names get settings from a template, in every process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archiver.config.settings import load_settings
from archiver.runtime.errors import ConfigInvalid, NotFound
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.schema.orders import order


def deployment(tmp_path: Path, *templates: dict[str, Any]) -> Deployment:
    made = Deployment(tmp_path / "d")
    document = made.document()
    document["topics"] += list(templates) or [
        {
            "pattern": "shop.*",
            "partitions": 2,
            "value": {"descriptor_set": "shop.binpb", "message": "shop.Order"},
            "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.{topic}"},
        }
    ]
    made.write(document)
    return made


def test_a_topic_of_the_log_gets_its_table_in_the_next_round(tmp_path: Path) -> None:
    with Driver(deployment(tmp_path)) as driver, Driver(driver.deployment) as other:
        # Another process creates it, while this one runs.
        other.application.sequencer.declare_topic("shop.new-orders", 3)
        other.send("shop.new-orders", [order(1)], 0)
        report = driver.archive()
        assert report.of("shop.new-orders").why is None
        table = driver.application.table("shop.new-orders")
        assert table is not None
        assert table.identifier[-1] == "shop_new_orders"
        assert driver.watermarks("shop.new-orders") == {0: 1}
        assert len(driver.records("shop.new-orders")[0]) == 1
        driver.check_complete("shop.new-orders")
    # A command that starts later has them from its opening on.
    with Driver(driver.deployment) as later:
        settings = later.application.settings.topic("shop.new-orders")
        assert settings is not None
        assert settings.partitions == 3


def test_a_templated_topic_is_created_and_deleted_without_the_configuration(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    assert made.cli("topics", "create", "shop.a").code == 0
    assert made.cli("topics", "describe", "shop.a", "--output", "json").json()["settings"]["partitions"] == 2
    assert made.cli("topics", "create", "other").code != 0
    checked = made.cli("config", "check")
    assert "4 topics, 1 template" in checked.out
    assert made.cli("config", "check", "--output", "json").json()["templates"] == ["shop.*"]
    with Driver(made) as driver:
        application = driver.application
        # Literal topics stay protected.
        application.intake.writer().close()
        with pytest.raises(ConfigInvalid, match="is in the configuration"):
            application.intake.check_deletable(application.topic("kept"))
        state = application.topic("shop.a")
        application.intake.delete_topic(state)
        assert application.settings.topic("shop.a") is None
        # Nothing creates it again: neither the poll nor a reload nor a round.
        application.intake.declare_missing()
        application.apply_settings(load_settings(made.config, {}))
        driver.archive()
        with pytest.raises(NotFound, match="was deleted"):
            application.topic("shop.a")


def test_a_templated_topic_gets_more_partitions(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    assert made.cli("topics", "create", "shop.a").code == 0
    assert made.cli("topics", "alter", "shop.a", "--partitions", "4").out == (
        "topic shop.a has 4 partitions, 2 before\n"
    ), "no entry of the configuration is behind"
    with Driver(made) as driver:
        driver.send("shop.a", [order(1)], 3)
        assert driver.archive().of("shop.a").why is None
        assert driver.watermarks("shop.a")[3] == 1
        notes = made.cli("status", "--output", "json").json()["attention"]
        assert not [note for note in notes if "shop.a" in note]


def test_a_template_without_a_number_of_partitions_needs_a_client_that_states_one(tmp_path: Path) -> None:
    made = deployment(tmp_path, {"pattern": "shop.*"})
    refused = made.cli("topics", "create", "shop.a")
    assert refused.code != 0
    assert "the template shop.* for topic shop.a states no partitions" in refused.err


def test_a_reload_that_drops_the_template_leaves_the_topic_unarchived(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    with Driver(made) as driver:
        driver.application.sequencer.declare_topic("shop.a", 1)
        driver.application.update_topics()
        assert driver.application.settings.topic("shop.a") is not None
        made.write(made.document())
        driver.application.apply_settings(load_settings(made.config, {}))
        assert driver.application.settings.topic("shop.a") is None
        assert driver.application.topic("shop.a").partitions == 1


def test_new_rules_hold_for_topics_that_match(tmp_path: Path) -> None:
    made = deployment(
        tmp_path,
        {
            "pattern": "shop.*",
            "value": {"descriptor_set": "shop.binpb", "message": "shop.Order", "validate": "reject"},
        },
    )
    with Driver(made) as driver:
        intake = driver.application.intake
        driver.application.sequencer.declare_topic("shop.a", 1)
        driver.application.update_topics()
        intake.warm()
        driver.application.sequencer.declare_topic("shop.b", 1)
        driver.application.update_topics()
        for topic in ("shop.a", "shop.b"):
            assert driver.send(topic, [order(1)], 0)
            with pytest.raises(Exception, match="value"):
                driver.send(topic, [b"\xff"], 0)


def test_two_topics_of_one_table_are_a_note_in_the_status(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    with Driver(made) as driver:
        for name in ("shop.a-b", "shop.a_b"):
            driver.application.sequencer.declare_topic(name, 1)
    notes = made.cli("status", "--output", "json").json()["attention"]
    assert [one for one in notes if "shop.a_b is not archived" in one and "belongs to topic shop.a-b" in one]
    audit = made.cli("audit", "--output", "json")
    assert audit.json()["verdict"] == "valid", audit


def test_configs_are_changed_by_a_command_and_hold_in_a_process_that_runs(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    document = made.document()
    document["topics"][0]["archive"]["idle_max"] = "7s"
    document["topics"] += [{"pattern": "shop.*", "partitions": 1, "retention": "30d"}]
    made.write(document)
    assert made.cli("topics", "create", "shop.a").code == 0
    with Driver(made) as driver:
        application = driver.application
        done = made.cli(
            *("topics", "alter", "shop.a", "--set", "retention.ms=86400000", "--set", "archive.idle_max=90s"),
            *("--output", "json"),
        )
        assert done.json()["configs"] == {"archive.idle_max": "90s", "retention.ms": "86400000"}
        application.backlog()
        settings = application.settings.topic("shop.a")
        assert settings is not None
        assert (settings.retention, settings.archive.idle_max) == (86400, 90)
        assert made.cli("topics", "alter", "shop.a", "--unset", "retention.ms").code == 0
        application.backlog()
        settings = application.settings.topic("shop.a")
        assert settings is not None
        assert (settings.retention, settings.archive.idle_max) == (30 * 86400, 90)
        # A reload keeps what is in the log.
        application.apply_settings(load_settings(made.config, {}))
        settings = application.settings.topic("shop.a")
        assert settings is not None
        assert settings.archive.idle_max == 90
    for arguments, why in (
        (("orders", "--set", "archive.idle_max=1s"), "topics.orders.archive.idle_max"),
        (("shop.a", "--set", "archive.table=shop.b"), "only the configuration file"),
        (("shop.a", "--set", "retention.ms=1"), "less than an hour"),
        (("shop.a", "--set", "retention.ms"), "write NAME=VALUE"),
        (("shop.a",), "nothing to alter"),
    ):
        refused = made.cli("topics", "alter", *arguments)
        assert refused.code != 0
        assert why in refused.err


def test_the_table_of_a_template_comes_back_without_logs_and_catalog(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    with Driver(made) as driver:
        driver.application.sequencer.declare_topic("shop.a", 1)
        driver.send("shop.a", [order(1), order(2)], 0)
        driver.archive()
    for path in [*made.root.glob("metadata.db*"), made.root / "catalog.db"]:
        path.unlink()
    done = made.cli("reconcile", "--rebuild", "--output", "json").json()
    (found,) = [one for one in done["tables"] if one["topic"] == "shop.a"]
    assert (found["state"], found["table"], found["rows"]) == ("rebuilt", "shop.shop_a", 2)
