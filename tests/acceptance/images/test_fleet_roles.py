"""The roles that docs/how-to/run-a-fleet.md gives are enough for images, and for nothing else; tried for real."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast_images.catalog.catalog import Catalog
from holdfast_images.errors import CatalogUnusable
from tests.acceptance.images.driving import ImageHoldfast
from tests.support.postgres_server import PostgresServer

PAGE = Path(__file__).parents[3] / "docs/how-to/run-a-fleet.md"
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """With the roles of the page."""
    by_administrator, *by_owner = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    server = PostgresServer()
    try:
        server.start()
        server.execute(by_administrator)
        Catalog.open(server.url_of("holdfast_owner")).close()
        with psycopg.connect(server.url_of("holdfast_owner"), autocommit=True) as connection:
            for statements in by_owner:
                connection.execute(statements.encode())
        yield server
    finally:
        server.close()


@pytest.fixture
def fleet(holdfast: ImageHoldfast, server: PostgresServer, request: pytest.FixtureRequest) -> ImageHoldfast:
    del holdfast.environment["HOLDFAST_STATE"]
    holdfast.environment |= {
        "HOLDFAST_STORE": server.url_of("holdfast_worker"),
        "HOLDFAST_DATA": str(holdfast.state),
        "HOLDFAST_HOST": re.sub("[^a-z]+", "-", request.node.name)[:40].strip("-"),
    }
    return holdfast


def patiently(fleet: ImageHoldfast, *words: str) -> None:
    """Run what looks at every process of this host first, and there may be many."""
    process = fleet.start(*words)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def test_a_worker_of_images_needs_no_more_than_the_page_grants(fleet: ImageHoldfast) -> None:
    fleet.process(fleet.source(), "--image-id", "demo")
    fleet.ok("snapshot", "create", "demo", "more")
    patiently(fleet, "snapshot", "deactivate", "more", "--delete")
    (fleet.state / "images/lost.tar").write_bytes(b"x")

    assert fleet.json("gc")["removed"] == 1
    assert fleet.json("verify-system", "--deep")["findings"] == []
    patiently(fleet, "image", "remove", "demo", "--force")
    assert fleet.left() == []


def test_a_reader_of_images_can_look_and_nothing_else(fleet: ImageHoldfast, server: PostgresServer) -> None:
    fleet.process(fleet.source(), "--image-id", "demo")
    fleet.environment["HOLDFAST_STORE"] = server.url_of("holdfast_reader")

    assert len(fleet.json("images")["images"]) == 1
    assert fleet.json("image", "show", "demo")["image"]["image_id"] == "demo"
    assert fleet.json("verify-system")["findings"] == []
    assert fleet.json("gc", "--dry-run")["actions"] == []
    assert fleet("image", "remove", "demo", "--force").code == 6
    fleet.environment["HOLDFAST_STORE"] += "?holdfast_schema=nowhere"
    assert "leaves no trace" in fleet("images").err


@pytest.mark.parametrize("role", ["holdfast_worker", "holdfast_reader"])
def test_no_role_but_the_owner_brings_the_tables_up_to_date(server: PostgresServer, role: str) -> None:
    [[newest]] = server.execute("SELECT max(version) FROM holdfast.schema_migrations")
    server.execute("DELETE FROM holdfast.schema_migrations WHERE version = %s", newest)
    try:
        with pytest.raises(CatalogUnusable, match="may not make it") as caught:
            Catalog.open(server.url_of(role))
    finally:
        server.execute("INSERT INTO holdfast.schema_migrations (version, description) VALUES (%s, 'x')", newest)

    assert "owner" in (caught.value.hint or "")
    with Catalog.open(server.url_of(role), host="nobody") as catalog:
        assert catalog.list_images() == []
