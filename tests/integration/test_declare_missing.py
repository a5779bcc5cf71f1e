"""Configured topics that do not exist are declared; what was deleted stays deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.config.settings import load_settings
from archiver.runtime.errors import NotFound
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver


def test_a_missing_topic_is_declared_and_a_deleted_one_is_not(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        application = driver.application
        application.intake.writer().close()
        document = deployment.document()
        document["topics"].append({"name": "added", "partitions": 2})
        deployment.write(document)
        application.configured = application.settings = load_settings(deployment.config, {})
        application.sequencer.delete_topic(application.topic("kept").topic_id)
        with pytest.raises(NotFound):
            application.topic("added")
        application.intake.declare_missing()
        assert application.topic("added").partitions == 2
        with pytest.raises(NotFound, match="was deleted"):
            application.topic("kept")
        tail = application.intake_log.tail()
        application.intake.declare_missing()
        assert application.intake_log.tail() == tail
