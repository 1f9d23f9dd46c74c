"""The guard against transaction control judges a statement as the database itself does."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.session import POSTGRES_COMMENTS, SQLITE_COMMENTS, Session, leading_words

STEERING = {
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
}

CONTROL = [
    "COMMIT",
    "end",
    "Begin",
    "ROLLBACK",
    "SAVEPOINT a",
    "RELEASE a",
    "PRAGMA user_version = 1",
    "ATTACH ':memory:' AS b",
]
LEGAL = [
    "SELECT 1",
    "SELECT CASE WHEN 1 THEN 2 /* else nothing */ END",
    "WITH t AS (SELECT 1 AS a) SELECT a FROM t",
    "VALUES (1)",
    "EXPLAIN SELECT 1",
    "EXPLAIN QUERY PLAN SELECT 1",
    "REPLACE INTO commits VALUES (1)",
    "INSERT INTO commits VALUES ('; COMMIT; --')",
    "DELETE FROM commits",
    "CREATE TABLE ended (a)",
]

SESSION: Any = Session(sqlite3.connect(":memory:"), {}, 0)

text = st.text(alphabet="ab */-;'\"\n\r\t\f", max_size=12)
skipped = st.lists(
    st.one_of(
        st.sampled_from([" ", "\n", "\t", ";", "\ufeff", "\r\n", "/**/", "/***/", "--\n"]),
        text.map(lambda inside: f"--{inside.replace(chr(10), ' ')}\n"),
        text.map(lambda inside: f"/*{inside.replace('*/', '')}*/"),
    ),
    max_size=6,
).map("".join)


def steers_sqlite(statement: str) -> bool | None:
    """What SQLite says that the statement would do; None if it is none."""
    steers: list[int] = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE commits (a)")
        connection.set_authorizer(lambda action, *_: steers.extend([action]) or sqlite3.SQLITE_OK)  # type: ignore[func-returns-value]
        try:
            connection.execute(statement)
        except sqlite3.Error:
            if not steers:
                return None
    return bool(STEERING & set(steers))


@given(before=skipped, statement=st.sampled_from(CONTROL + LEGAL), after=skipped)
def test_the_first_word_on_sqlite_is_what_sqlite_takes_it_for(before: str, statement: str, after: str) -> None:
    whole = f"{before}{statement} {after}"
    steers = steers_sqlite(whole)

    refused = SESSION.refused_word(whole) is not None

    if steers is not None:
        assert refused is steers


@given(statement=st.text(alphabet="COMIT comit/*- ;\n\r\t\ufeff\f\v", max_size=30))
def test_nothing_that_steers_gets_past_in_any_disguise(statement: str) -> None:
    if steers_sqlite(statement):
        assert SESSION.refused_word(statement) is not None


@pytest.mark.parametrize("comments", [SQLITE_COMMENTS, POSTGRES_COMMENTS])
@pytest.mark.parametrize(
    "header",
    ["/* line of the header */\n", "-- line of the header\n", "/*/", "/**/ -- x\n;", "/* /* */ */", "*/", "--"],
)
def test_the_time_it_takes_grows_with_the_text_only(comments: object, header: str) -> None:
    statement = header * 100_000 + "COMMIT"

    began = time.perf_counter()
    leading_words(statement, 2, comments)  # type: ignore[arg-type]

    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "statement, words",
    [
        ("/* a /* b */ c */ COMMIT", ["commit"]),
        ("/* a /* b */ COMMIT", []),
        ("-- a\rCOMMIT", ["commit"]),
        ("SET /* x */ LOCAL a = 1", ["set", "local"]),
        ("DO $$ BEGIN COMMIT; END $$", ["do"]),
        ("$$ COMMIT $$", []),
        ('"commit" x', []),
        ("commit_all()", ["commit_all"]),
        ("", []),
        ("/*", []),
    ],
)
def test_the_first_words_on_postgres(statement: str, words: list[str]) -> None:
    assert leading_words(statement, 2, POSTGRES_COMMENTS) == words


def test_a_comment_does_not_nest_on_sqlite() -> None:
    assert leading_words("/* a /* b */ COMMIT", 1, SQLITE_COMMENTS) == ["commit"]
    assert leading_words("-- a\rCOMMIT", 1, SQLITE_COMMENTS) == []
