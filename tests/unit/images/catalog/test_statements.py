"""The statements of both dialects, and their migrations."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from holdfast.sql_files import Migration, load_migrations, load_statements
from holdfast_images.catalog.migrating import pending
from holdfast_images.catalog.postgres.database import in_dialect
from holdfast_images.errors import CatalogUnusable

SQLITE = "holdfast_images.catalog.sqlite"
POSTGRES = "holdfast_images.catalog.postgres"


def test_both_dialects_have_the_same_statements_in_the_same_order() -> None:
    assert list(load_statements(SQLITE)) == list(load_statements(POSTGRES))


def test_both_dialects_have_the_same_migrations() -> None:
    assert [(m.version, m.description) for m in load_migrations(SQLITE)] == [
        (m.version, m.description) for m in load_migrations(POSTGRES)
    ]


@pytest.mark.parametrize("package", [SQLITE, POSTGRES])
def test_every_statement_has_a_name_and_a_reason(package: str) -> None:
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    blocks = text.split("-- name: ")[1:]

    assert len(blocks) == len(load_statements(package))
    assert [block for block in blocks if not re.match(r"[a-z_]+\n-- \S", block)] == []


def test_every_statement_of_a_fleet_asks_for_the_host() -> None:
    without = [name for name, text in load_statements(POSTGRES).items() if ":host" not in text]

    # One locks for all of them; one asks for a flow, whose name has the host in it; the id is the catalog's.
    assert without == ["lock_reservations", "unfinished_job", "store_id"]


def test_both_dialects_take_the_same_parameters() -> None:
    def parameters(text: str) -> set[str]:
        return set(re.findall(r"(?<![:\w]):([a-z_0-9]+)", text)) - {"host"}

    sqlite, postgres = load_statements(SQLITE), load_statements(POSTGRES)

    assert {name: parameters(text) for name, text in sqlite.items()} == {
        name: parameters(text) for name, text in postgres.items()
    }


def test_parameters_are_spelled_as_psycopg_wants_them() -> None:
    assert in_dialect("a = :a AND b::bigint % 2 FROM {schema}.t", "s") == "a = %(a)s AND b::bigint %% 2 FROM s.t"


def test_what_was_applied_is_not_applied_again() -> None:
    migrations = [Migration(1, "one", Path("1.sql")), Migration(2, "two", Path("2.sql"))]

    assert pending(migrations, [1], "here") == migrations[1:]
    assert pending(migrations, [], "here") == migrations
    assert pending(migrations, [1, 2], "here") == []
    with pytest.raises(CatalogUnusable, match="version 3"):
        pending(migrations, [1, 2, 3], "here")
