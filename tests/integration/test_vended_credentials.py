"""A REST catalog that issues keys for its tables: are they used in place of ours, for metadata and for
nothing else?
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.rest_guard import BEARER, Guard, Guarded, properties
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server, data_group

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # needs Java twice

RIGHT = {"s3.access-key-id": ACCESS_KEY_ID, "s3.secret-access-key": SECRET_ACCESS_KEY}
WRONG = {"s3.access-key-id": "a-key-of-nobody", "s3.secret-access-key": "a-vended-secret-that-nobody-may-see"}


@pytest.fixture(scope="module")
def on_s3(
    tmp_path_factory: pytest.TempPathFactory,
    s3_server: S3Server,
) -> Iterator[tuple[RestCatalog, S3Server, str]]:
    """A REST catalog whose warehouse is a bucket, the bucket's server, and the bucket."""
    bucket = s3_server.new_bucket()
    reached = {"s3.endpoint": s3_server.uri, "s3.path-style-access": "true", "client.region": REGION, **RIGHT}
    with RestCatalog(
        tmp_path_factory.mktemp("rest-on-s3"), {"warehouse": f"s3://{bucket}/lake", **reached}
    ) as catalog:
        yield catalog, s3_server, bucket


def deployed(folder: Path, server: S3Server, guarded: Guarded, table: str, **more: str) -> Deployment:
    """A deployment on a bucket of its own, with a guarded catalog."""
    data = data_group(folder, server.new_bucket(), server.uri)
    (folder / "token").write_text(BEARER + "\n", encoding="utf-8")
    catalog = {"name": "lake", **properties(guarded), "token": {"file": "token"}, **more}
    topic = {
        "name": "clicks",
        "partitions": 1,
        "archive": {"kind": "iceberg", "catalog": "lake", "table": table},
    }
    # Twenty attempts with keys that never work would take a quarter of a minute.
    once = {"commit_attempts_max": 1}
    return Deployment(
        folder, overrides={"data": data, "catalogs": [catalog], "topics": [topic], "archive": once}
    )


@pytest.mark.turns(2)
@pytest.mark.parametrize("location", ["data", "catalog"])
@pytest.mark.parametrize("spelling", ["config", "storage-credentials"])
def test_their_keys_win_over_ours(
    on_s3: tuple[RestCatalog, S3Server, str], tmp_path: Path, spelling: str, location: str
) -> None:
    catalog, server, bucket = on_s3
    guard = Guard("bearer")

    def hand_out(keys: dict[str, str]) -> None:
        guard.vended = keys if spelling == "config" else {}
        guard.credentials = [] if spelling == "config" else [{"prefix": "s3://", "config": keys}]

    hand_out(RIGHT)
    with Guarded(lambda: catalog.uri, guard) as guarded:
        ours = WRONG | {"s3.session-token": "a session token that belongs to nobody's keys"}
        table = f"vended_{spelling.replace('-', '_')}_{location}.clicks"
        deployment = deployed(tmp_path / "d", server, guarded, table, location=location, **ours)
        with Driver(deployment) as driver:
            driver.send("clicks", [b"x"] * 3)
            report = driver.archive().of("clicks")
            assert report.state == "archived", report.why
            driver.send("clicks", [b"x"] * 3)
            assert driver.archive().of("clicks").state == "archived"
        assert guard.delegation == {"vended-credentials"}

        # The reverse: ours would work, but the issued keys are used, and they do not.
        hand_out(WRONG)
        document = deployment.document()
        document["catalogs"][0].update(
            {"s3.access-key-id": {"file": "key"}, "s3.secret-access-key": {"file": "secret"}}
        )
        del document["catalogs"][0]["s3.session-token"]
        deployment.write(document)
        with Driver(deployment) as driver:
            driver.send("clicks", [b"x"] * 3)
            report = driver.archive().of("clicks")
            assert report.state in ("deferred", "waiting"), (report.state, report.why)
            assert WRONG["s3.secret-access-key"] not in (report.why or "")
        hand_out(RIGHT)
        with Driver(deployment) as driver:
            assert driver.archive().of("clicks").state in ("archived", "idle")
        audit = deployment.cli("audit", "--output", "json")
        assert (audit.code, audit.json()["verdict"]) == (0, "valid"), audit.out + audit.err
        client = catalog.client()
        placed = client.load_table(table).location()
        client.close()
        assert placed.startswith(f"s3://{bucket}/lake/") is (location == "catalog"), placed
