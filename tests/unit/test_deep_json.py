"""JSON from outside (properties, footers, objects) that is nested too deeply for the parser."""

from __future__ import annotations

import types
from typing import Any

import pytest

from archiver.catalog.evidence import Evidence
from archiver.objects.cluster import parse_cluster
from archiver.objects.paths import topic_key
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from reconcile.repair.rebuild import BucketRebuild
from reconcile.snapshot.object_listing import topic_name
from reconcile.snapshot.observer import _gaps
from tests.support.objects.memory_store import MemoryObjectStore

DEEP = "[" * 1_000_000
TOPIC = TopicId("a" * 32)


def footer(text: str) -> Any:
    return types.SimpleNamespace(metadata={b"archiver.gaps": text.encode()})


def test_a_property_is_refused() -> None:
    with pytest.raises(Corrupted, match="cannot be understood"):
        Evidence.from_json(DEEP)


def test_an_identity_is_refused() -> None:
    with pytest.raises(Corrupted, match="is not a cluster identity"):
        parse_cluster(DEEP.encode(), "cluster.json")


def test_a_topic_without_a_readable_name_has_none() -> None:
    store = MemoryObjectStore()
    store.create(topic_key(TOPIC), DEEP.encode())
    assert topic_name(store, TOPIC) is None
    parts: Any = types.SimpleNamespace(objects=store)
    with pytest.raises(Corrupted, match="does not name the topic"):
        BucketRebuild(parts)._folder(TOPIC, [])


@pytest.mark.parametrize("text", [DEEP, "[[0, Infinity]]", "[[0]]", "{"])
def test_a_footer_names_no_gaps(text: str) -> None:
    assert _gaps(footer(text)) == ()
