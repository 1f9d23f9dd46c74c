"""Tokens and sessions, on either store: shown once, kept hashed, refused the moment they are revoked or too old."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.core.values import checked_name
from holdfast.errors import DefinitionError, RowRefused, TokenNameInUseError, TokenNotFoundError
from holdfast.tables import OpenTables
from holdfast.web.principal import Scope
from holdfast.web.tokens import LINK_MS, SESSION_MS, TABLES, USED_INTERVAL_MS, TokenStore
from tests.support.backends import Backend
from tests.support.waiting import eventually

DAY = 86_400_000
WHO = "operator:alice"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time() -> Clock:
    return Clock()


@pytest.fixture
def tables(backend: Backend) -> Iterator[OpenTables]:
    with TABLES.open(backend.place) as tables:
        yield tables


@pytest.fixture
def tokens(tables: OpenTables, time: Clock) -> TokenStore:
    return TokenStore(tables, clock=time)


def made(tokens: TokenStore, name: str = "ci", scope: Scope = Scope.OPERATE, days: int | None = 30) -> str:
    lifetime = None if days is None else days * DAY
    return tokens.create(name, scope, lifetime_ms=lifetime, actor=WHO)[1]


def test_a_token_is_known_by_its_text_and_kept_without_it(tokens: TokenStore, tables: OpenTables) -> None:
    text = made(tokens)
    found = tokens.token_of(text)
    rows = str(tables.run("SELECT * FROM holdfast_web_tokens"))
    secret = text.rpartition("_")[2]

    assert found is not None
    assert (found.name, found.scope, found.actor, found.created_by) == ("ci", Scope.OPERATE, "token:ci", WHO)
    assert found.token_id in rows
    assert secret not in rows


def test_what_is_not_the_token_is_nobody(tokens: TokenStore) -> None:
    text = made(tokens)
    other = made(tokens, "other")
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    mixed = text[:20] + other[20:]

    assert mixed != text
    assert [tokens.token_of(one) for one in (wrong, mixed, "", "hft__", text.upper(), f"{text} ", "ü" * 84)] == [
        None
    ] * 7


def test_a_token_ends_when_its_time_is_up(tokens: TokenStore, time: Clock) -> None:
    text, lasting = made(tokens, days=1), made(tokens, "lasting", days=None)
    time.now += DAY - 1
    before = tokens.token_of(text)
    time.now += 1

    assert before is not None
    assert tokens.token_of(text) is None
    assert tokens.token_of(lasting) is not None


def test_a_revoked_token_is_refused_at_once_by_every_process(backend: Backend, tokens: TokenStore, time: Clock) -> None:
    text = made(tokens)
    session = tokens.start_session(text)
    assert session is not None
    with TABLES.open(backend.place) as elsewhere:
        revoked = TokenStore(elsewhere, clock=time).revoke("ci", actor="operator:bob")

        assert revoked.revoked_by == "operator:bob"
    assert tokens.token_of(text) is None
    assert tokens.session_of(session[0]) is None
    assert tokens.start_session(text) is None
    assert not tokens.has_valid()


def test_revoking_twice_changes_nothing_and_of_what_is_not_there_is_an_error(tokens: TokenStore, time: Clock) -> None:
    made(tokens)
    first = tokens.revoke("ci", actor=WHO)
    time.now += 5

    assert tokens.revoke(first.token_id, actor="operator:bob") == first
    with pytest.raises(TokenNotFoundError):
        tokens.revoke("nobody", actor=WHO)


def test_a_name_stands_for_one_token_until_it_is_revoked(tokens: TokenStore) -> None:
    first = made(tokens)
    with pytest.raises(TokenNameInUseError):
        made(tokens)
    tokens.revoke("ci", actor=WHO)
    second = made(tokens)
    tokens.revoke("ci", actor=WHO)

    assert first != second
    assert [one.revoked_at is not None for one in tokens.tokens()] == [True, True]


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 500, "a\n", "<script>"])
def test_a_name_that_could_mean_something_else_is_refused(tokens: TokenStore, name: str) -> None:
    with pytest.raises(DefinitionError):
        checked_name(name, "token")
    with pytest.raises(DefinitionError):
        made(tokens, name)


def test_the_last_use_is_on_record_once_a_minute_at_most(tokens: TokenStore, time: Clock) -> None:
    text, first = made(tokens), time.now
    tokens.token_of(text)
    eventually(lambda: tokens.tokens()[0].used_at == first)
    time.now += USED_INTERVAL_MS - 1
    tokens.token_of(text)
    time.now += 1
    tokens.token_of(text)
    eventually(lambda: tokens.tokens()[0].used_at != first)

    assert tokens.tokens()[0].used_at == time.now


def test_a_session_lasts_for_its_time_and_no_longer_than_its_token(tokens: TokenStore, time: Clock) -> None:
    lasting = tokens.start_session(made(tokens))
    short = tokens.start_session(tokens.create("short", Scope.READ, lifetime_ms=1000, actor=WHO)[1])
    assert lasting is not None
    assert short is not None
    known = tokens.session_of(short[0])
    time.now += 1000
    ended = tokens.session_of(short[0])
    time.now += SESSION_MS - 1001
    last = tokens.session_of(lasting[0])
    time.now += 1

    assert known is not None
    assert (known.actor, known.scope) == ("token:short", Scope.READ)
    assert ended is None
    assert last is not None
    assert tokens.session_of(lasting[0]) is None


def test_a_session_is_kept_hashed_and_ended_by_logging_out(tokens: TokenStore, tables: OpenTables) -> None:
    begun = tokens.start_session(made(tokens))
    assert begun is not None
    rows = str(tables.run("SELECT * FROM holdfast_web_sessions"))
    tokens.end_session(begun[0])

    assert begun[0] not in rows
    assert tokens.session_of(begun[0]) is None


def test_a_link_begins_one_session_and_only_soon(tokens: TokenStore, time: Clock) -> None:
    link, late = tokens.link("operator:alice", Scope.ADMIN), tokens.link("operator:alice", Scope.ADMIN)
    begun = tokens.start_session(link)
    again = tokens.start_session(link)
    time.now += LINK_MS

    assert begun is not None
    assert (begun[1].actor, begun[1].scope) == ("operator:alice", Scope.ADMIN)
    assert again is None
    assert tokens.start_session(late) is None


def test_sessions_that_have_ended_are_forgotten(tokens: TokenStore, tables: OpenTables, time: Clock) -> None:
    text = made(tokens, days=None)
    tokens.start_session(text)
    time.now += SESSION_MS
    tokens.start_session(text)

    assert tables.run("SELECT count(*) FROM holdfast_web_sessions") == [(1,)]


def test_the_database_takes_no_other_scope(tables: OpenTables) -> None:
    with pytest.raises(RowRefused):
        tables.run(
            "add_token",
            token_id="a",
            name="a",
            secret_hash="a",
            scope="all",
            created_at=1,
            created_by="a",
            expires_at=None,
        )
