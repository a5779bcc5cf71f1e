"""Settings: how a valid file is parsed, how topics override the cluster, what stays hidden."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from archiver.config.settings import Settings, load_settings
from archiver.refine.task import RefineOptions
from archiver.runtime.errors import ConfigInvalid

EXAMPLE = """
    cluster: demo
    roles: [intake, archive, reconcile]
    data: { uri: "file:///var/lib/archiver/data" }
    metadata: { sqlite: { path: /var/lib/archiver/metadata.db } }
    catalogs:
      - { name: local, type: sql, uri: "sqlite:////var/lib/archiver/catalog.db" }
    spark: { master: "local[*]", conf: {} }
    http: { listen: "127.0.0.1:8787" }
    intake: { delay_max: 200ms, delay_max_bytes: 15MB }
    archive: { min_bytes: 0, max_bytes: 128MiB, start_delay_max: 10s, complete_delay_max: 5m, idle_max: 30s, concurrent_max: 0 }
    cleanup: { interval: 1h }
    sources: []
    topics:
      - name: orders
        partitions: 8
        retention: forever
        value: { descriptor_set: orders.binpb, message: shop.Order }
        archive: { kind: iceberg, catalog: local, table: shop.orders, partition_by: [day], complete_delay_max: 30s }
"""
LEAST = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"


def load(folder: Path, text: str, **environ: str) -> Settings:
    path = folder / "archiver.yaml"
    path.write_text(dedent(text), encoding="utf-8")
    return load_settings(path, environ)


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    settings = load(tmp_path, EXAMPLE)
    assert settings.cluster == "demo"
    assert settings.roles == ("intake", "archive", "reconcile")
    assert settings.data.uri == "file:///var/lib/archiver/data"
    assert settings.metadata.sqlite is not None
    assert settings.metadata.sqlite.path == Path("/var/lib/archiver/metadata.db")
    assert settings.catalogs[0].properties() == {
        "type": "sql",
        "uri": "sqlite:////var/lib/archiver/catalog.db",
    }
    assert (settings.intake.delay_max, settings.intake.delay_max_bytes) == (0.2, 15_000_000)
    assert (settings.archive.max_bytes, settings.archive.complete_delay_max, settings.archive.min_bytes) == (
        128 * 2**20,
        300.0,
        0,
    )
    assert settings.cleanup.interval == 3600.0
    orders = settings.topics[0]
    assert (orders.name, orders.partitions, orders.retention) == ("orders", 8, None)
    assert orders.value is not None
    assert (orders.value.descriptor_set, orders.value.message) == (tmp_path / "orders.binpb", "shop.Order")
    assert (
        orders.archive.kind,
        orders.archive.catalog,
        orders.archive.table,
        orders.archive.partition_by,
    ) == (
        "iceberg",
        "local",
        "shop.orders",
        ("day",),
    )


def test_a_topic_overrides_only_the_triggers_it_names(tmp_path: Path) -> None:
    settings = load(tmp_path, EXAMPLE)
    merged = settings.archive_for(settings.topics[0])
    assert merged.complete_delay_max == 30.0
    assert merged == settings.archive.model_copy(update={"complete_delay_max": 30.0})


def test_a_topic_may_set_a_trigger_to_zero_or_never(tmp_path: Path) -> None:
    text = (
        LEAST + "archive: {min_bytes: 1MB, idle_max: 1m}\ntopics: [{name: a, partitions: 1, archive: "
        "{min_bytes: -1, idle_max: 0}}]\n"
    )
    settings = load(tmp_path, text)
    merged = settings.archive_for(settings.topics[0])
    assert (merged.min_bytes, merged.idle_max) == (-1, 0)
    assert settings.archive.min_bytes == 10**6


def test_defaults_and_relative_paths(tmp_path: Path) -> None:
    settings = load(tmp_path, LEAST)
    assert settings.data.uri == (tmp_path / "data").as_uri()
    assert settings.metadata.sqlite is not None
    assert settings.metadata.sqlite.path == tmp_path / "metadata.db"
    assert settings.metadata.sqlite.busy_timeout == 30.0
    assert (settings.log.entry_bytes_max, settings.log.append_attempts_max, settings.log.append_backoff) == (
        512 * 1024,
        10,
        0.05,
    )
    assert (
        settings.intake.queue_bytes_max,
        settings.intake.row_group_bytes,
        settings.intake.close_timeout,
    ) == (64_000_000, 2**20, 30.0)
    assert (
        settings.archive.commit_attempts_max,
        settings.archive.snapshots_max,
        settings.archive.snapshots_age,
    ) == (20, 100, 900.0)
    assert (settings.archive.merge_every, settings.archive.open_writers_max, settings.archive.zstd_level) == (
        25,
        64,
        1,
    )
    assert (
        [settings.archive.reads_of(is_bucket=one) for one in (False, True)]
        == [RefineOptions().reads_max, 4]
        == [0, 4]
    )
    assert settings.archive.uploads_max == RefineOptions().uploads_max == 4
    assert settings.testing.failpoints is False
    assert settings.topics == ()


def test_a_relative_path_does_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "archiver.yaml").write_text(LEAST)
    monkeypatch.chdir(tmp_path)
    settings = load_settings(Path("a b/archiver.yaml"), {})
    monkeypatch.chdir("/")
    assert settings.data.uri == (tmp_path / "a b" / "data").as_uri()
    assert settings.data.uri.endswith("/a%20b/data")


def test_a_relative_sqlite_catalog_begins_at_the_file(tmp_path: Path) -> None:
    text = (
        LEAST + 'catalogs: [{name: a, type: sql, uri: "sqlite:///catalog.db"}, {name: b, type: sql, uri: '
        '"sqlite:///:memory:"}]\n'
    )
    first, second = load(tmp_path, text).catalogs
    assert first.properties()["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    assert second.properties()["uri"] == "sqlite:///:memory:"


def test_words_that_yaml_1_1_mistakes_stay_text(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        LEAST
        + "topics: [{name: no, partitions: 1}, {name: on, partitions: 1}, {name: 1:30, partitions: 1}]".replace(
            "1:30", "'1.30'"
        ),
    )
    assert [topic.name for topic in settings.topics] == ["no", "on", "1.30"]


def test_lookups(tmp_path: Path) -> None:
    settings = load(tmp_path, EXAMPLE)
    assert settings.topic("orders") is settings.topics[0]
    assert settings.topic("order") is None
    assert settings.catalog("local") is settings.catalogs[0]
    assert settings.catalog("other") is None


def test_secrets_are_followed_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token.txt").write_text("hunter3\n")
    text = LEAST + dedent("""
        catalogs:
          - name: rest
            type: rest
            uri: "https://someone:hunter1@host/catalog"
            credential: hunter4
            oauth: {env: SECRET}
            extra: {file: token.txt}
            s3.path-style: true
            s3.timeout: 3
    """)
    settings = load(tmp_path, text, SECRET="hunter2")
    assert settings.catalogs[0].properties() == {
        "type": "rest",
        "uri": "https://someone:hunter1@host/catalog",
        "credential": "hunter4",
        "oauth": "hunter2",
        "extra": "hunter3",
        "s3.path-style": "true",
        "s3.timeout": "3",
    }
    shown = (
        repr(settings)
        + str(settings)
        + json.dumps(settings.model_dump(mode="json"))
        + settings.model_dump_json()
    )
    assert "hunter" not in shown
    assert "s3.timeout" in shown


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = load(tmp_path, LEAST)
    with pytest.raises(ValueError, match="frozen"):
        settings.cluster = "other"  # type: ignore[misc]


def test_numbers_and_truths_are_spark_properties(tmp_path: Path) -> None:
    settings = load(tmp_path, LEAST + "spark: {conf: {spark.a: 3, spark.b: true, spark.c: text}}")
    assert settings.spark.conf == {"spark.a": "3", "spark.b": "true", "spark.c": "text"}


def test_the_json_schema_describes_every_group_and_is_json() -> None:
    schema = json.loads(json.dumps(Settings.json_schema()))
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert set(schema["required"]) == {"cluster", "data", "metadata"}
    # In the file, templates are entries of `topics`.
    assert set(schema["properties"]) == set(Settings.model_fields) - {"templates"}
    assert [item["$ref"].rsplit("/", 1)[1] for item in schema["properties"]["topics"]["items"]["anyOf"]] == [
        "TopicSettings",
        "TopicTemplateSettings",
    ]
    assert schema["additionalProperties"] is False
    for name, group in schema["$defs"].items():
        assert group["description"], name
        assert group["additionalProperties"] is False or name == "CatalogSettings"
        for key, described in group["properties"].items():
            assert described.get("description"), f"{name}.{key}"
    assert schema["$defs"]["TopicArchiveSettings"]["properties"]["kind"]["enum"] == [
        "none",
        "parquet",
        "iceberg",
    ]


def test_an_unreadable_file_is_invalid_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="does not exist; name an existing configuration file"):
        load_settings(tmp_path / "nowhere.yaml", {})
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        load_settings(tmp_path, {})
