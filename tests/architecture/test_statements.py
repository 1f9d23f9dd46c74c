"""Statements are written once: a dialect says again only what it says differently; somebody runs each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

from holdfast.sql_files import DIALECTS, load_migrations, load_statements, split, to_pyformat

SOURCE = Path(__file__).parents[2] / "src"
PACKAGES = ["holdfast.store", "holdfast_images.catalog"]
ONLY_IN_ONE: Mapping[str, Mapping[str, str]] = {
    "lock_jobs": {"postgres": "a SQLite transaction is alone already"},
    "lock_free_jobs": {"postgres": "as lock_jobs"},
    "known_jobs": {"postgres": "asked about jobs that somebody else has locked"},
    "lock_queues": {"postgres": "as lock_jobs"},
    "open_slots": {"postgres": "asked again behind lock_queues"},
}
"""Name → the dialect that has it, and why no other needs it."""
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


def folder(package: str) -> Path:
    return Path(import_module(package).__path__[0])


def parts(file: Path, kind: str) -> dict[str, str]:
    return {name: text for found, name, text in split(file.read_text(encoding="utf-8")) if found == kind}


def base(package: str) -> dict[str, str]:
    return parts(folder(package) / "statements.sql", "name")


def overrides(package: str, dialect: str, kind: str = "name") -> dict[str, str]:
    return parts(folder(package) / dialect / "overrides.sql", kind)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_statement_is_written_twice(package: str) -> None:
    sqlite, postgres = overrides(package, "sqlite"), overrides(package, "postgres")
    common = base(package)

    assert [name for name, text in sqlite.items() if postgres.get(name) == text] == []
    assert [name for own in (sqlite, postgres) for name, text in own.items() if common.get(name) == text] == []
    # What both override is nobody's, and has no business in the base.
    assert sorted(set(sqlite) & set(postgres) & set(common)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_statement_that_only_one_dialect_has_has_a_reason(package: str) -> None:
    common = base(package)
    own = {dialect: set(overrides(package, dialect)) - set(common) for dialect in DIALECTS}
    lonely = {
        name: dialect for dialect in DIALECTS for name in own[dialect] if any(name not in own[d] for d in DIALECTS)
    }
    reasons = ONLY_IN_ONE if package == "holdfast.store" else {}

    assert lonely == {name: dialect for name, why in reasons.items() for dialect in why}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_statement_is_run_by_somebody(package: str) -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in folder(package).rglob("*.py"))
    names = set(chain.from_iterable(load_statements(package, dialect) for dialect in DIALECTS))

    # A name may be put together from a list of tables.
    made = tuple(re.findall(r'f"([a-z]+_)\{', code)) or ("-",)

    assert sorted(name for name in names if f'"{name}"' not in code and not name.startswith(made)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_both_dialects_spell_the_same_words_and_each_is_used(package: str) -> None:
    spelled = [overrides(package, dialect, "spelling") for dialect in DIALECTS]
    texts = "".join(file.read_text(encoding="utf-8") for file in folder(package).rglob("*.sql"))
    left = {
        (dialect, name): re.findall(r"\{[a-z_]+\}", text)
        for dialect in DIALECTS
        for name, text in load_statements(package, dialect).items()
    }

    assert set(spelled[0]) == set(spelled[1])
    assert [name for name in spelled[0] if f"{{{name}}}" not in texts] == []
    assert [name for name in spelled[0] if spelled[0][name] == spelled[1][name]] == []
    assert {where: found for where, found in left.items() if found} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_statement_takes_the_same_parameters_in_both_dialects(package: str) -> None:
    sqlite, postgres = load_statements(package, "sqlite"), load_statements(package, "postgres")
    differing = []
    for name, text in sqlite.items():
        # What PostgreSQL takes as a batch of rows in JSON, SQLite takes as values; a file has no other host.
        more = {"batch"} if "VALUES (?" in text else set()
        if (set(PARAMETER.findall(text)) | more) - {"host"} != set(PARAMETER.findall(postgres[name])) - {"host"}:
            differing.append(name)

    assert differing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_statement_has_a_name_and_a_reason(package: str) -> None:
    nameless = []
    for file in [folder(package) / "statements.sql", *folder(package).glob("*/overrides.sql")]:
        blocks = re.split(r"^-- (?:name|spelling): ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        nameless += [block.partition("\n")[0] for block in blocks if not re.match(r"[a-z_]+\n-- \S", block)]

    assert nameless == []


def test_every_statement_of_a_fleet_asks_for_the_host() -> None:
    without = [
        name for name, text in load_statements("holdfast_images.catalog", "postgres").items() if ":host" not in text
    ]

    # One asks for a flow, whose name has the host in it; the id is the catalog's; one locks for all of them. The others
    # show what every host has, and change nothing.
    shown = {"page_of_images", "copies_of_image", "page_of_snapshots", "hosts_of_snapshot", "locks_of_all"}
    shown |= {"counts_of_all", "list_hosts"}
    assert [name for name in without if name not in shown] == ["unfinished_job", "store_id", "lock_reservations"]
    assert shown <= set(without)


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_both_dialects_have_the_same_migrations(package: str) -> None:
    sqlite, postgres = ([(m.version, m.description) for m in load_migrations(package, d)] for d in DIALECTS)

    assert sqlite == postgres


def test_parameters_are_spelled_as_psycopg_wants_them() -> None:
    assert to_pyformat("a = :a AND b::bigint % 2 AND c = :c_1") == "a = %(a)s AND b::bigint %% 2 AND c = %(c_1)s"
