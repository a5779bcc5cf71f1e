"""Every external image in the Dockerfile and the compose files is named by its digest: a tag can name other
bytes later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
OURS = re.compile(r"stream-archiver:\d+\.\d+\.\d+")
PINNED = re.compile(r"(?:[a-z0-9.-]+/)*[a-z0-9.-]+:[A-Za-z0-9._-]*\d[A-Za-z0-9._-]*@sha256:[0-9a-f]{64}")
"""An image with a tag, for people, and a digest, which selects the bytes."""


def from_dockerfile(text: str) -> Iterator[str]:
    """The base images of stages, without stages that begin with another stage."""
    stages: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if words[:1] and words[0].upper() == "FROM":
            image, *rest = (word for word in words[1:] if not word.startswith("--"))
            if image not in stages:
                yield image
            stages |= set(rest[1:])


def from_compose(text: str) -> Iterator[str]:
    """The images of all services."""
    for service in yaml.safe_load(text)["services"].values():
        if not OURS.fullmatch(service["image"]):
            yield service["image"]


def found() -> list[tuple[str, str]]:
    images = [
        (path, image)
        for path in DEPLOY.rglob("Dockerfile")
        for image in from_dockerfile(path.read_text(encoding="utf-8"))
    ]
    images += [
        (path, image)
        for path in DEPLOY.rglob("compose*.yaml")
        for image in from_compose(path.read_text(encoding="utf-8"))
    ]
    return [(str(path.relative_to(DEPLOY)), image) for path, image in images]


def test_every_image_of_others_is_named_by_its_digest() -> None:
    images = found()
    assert {path for path, _ in images} == {"Dockerfile", "stack/compose.yaml"}
    assert [one for one in images if not PINNED.fullmatch(one[1])] == []


def test_one_tag_has_one_digest() -> None:
    digests: dict[str, set[str]] = {}
    for _, image in found():
        tag, _, digest = image.partition("@")
        digests.setdefault(tag, set()).add(digest)
    assert {tag for tag, known in digests.items() if len(known) > 1} == set()


@pytest.mark.parametrize(
    "line",
    ["FROM python:3.11.14-slim-bookworm", "FROM --platform=linux/amd64 python:3.11 AS build", "FROM python"],
)
def test_an_image_without_a_digest_is_found(line: str) -> None:
    assert [image for image in from_dockerfile(f"{line}\nFROM build") if not PINNED.fullmatch(image)] != []
