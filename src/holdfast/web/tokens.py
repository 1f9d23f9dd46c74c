"""Bearer tokens and browser sessions, in tables of their own beside the engine's.

A secret is 256 random bits, and only its SHA-256 is kept. A slow hash is for passwords, which can be guessed: nobody
guesses these, and every request would pay for it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.core.values import checked_name
from holdfast.errors import HoldfastError, RowRefused, TokenNameInUseError, TokenNotFoundError
from holdfast.tables import OpenTables, Tables
from holdfast.web.principal import Scope
from holdfast.web.routes import Services

log = logging.getLogger("holdfast.web")

PREFIX = "hft"
"""So that whoever looks for secrets in files finds these."""
USED_INTERVAL_MS = 60_000
SESSION_MS = 12 * 3_600_000
LINK_MS = 600_000
DAY_MS = 86_400_000
LONGEST_DAYS = 3650

_TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{16}})_([0-9a-f]{{64}})")
_SECRET = re.compile(r"[0-9a-f]{64}")
_NO_HASH = "0" * 64

TABLES = Tables(
    "holdfast_web",
    migrations=[
        """-- Tokens
CREATE TABLE holdfast_web_tokens (
    token_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    secret_hash TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('read', 'submit', 'operate', 'admin')),
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    revoked_by TEXT,
    used_at BIGINT
);
CREATE UNIQUE INDEX holdfast_web_token_names ON holdfast_web_tokens (name) WHERE revoked_at IS NULL;
CREATE TABLE holdfast_web_sessions (
    session_hash TEXT PRIMARY KEY,
    token_id TEXT,
    actor TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('read', 'submit', 'operate', 'admin')),
    expires_at BIGINT NOT NULL
);
CREATE INDEX holdfast_web_session_ends ON holdfast_web_sessions (expires_at)"""
    ],
    statements={
        "add_token": """INSERT INTO holdfast_web_tokens
    (token_id, name, secret_hash, scope, created_at, created_by, expires_at)
VALUES (:token_id, :name, :secret_hash, :scope, :created_at, :created_by, :expires_at)""",
        "tokens": "SELECT * FROM holdfast_web_tokens ORDER BY created_at, token_id",
        "token": "SELECT * FROM holdfast_web_tokens WHERE token_id = :token_id",
        "tokens_named": """SELECT * FROM holdfast_web_tokens WHERE token_id = :name OR name = :name
ORDER BY revoked_at IS NULL, created_at""",
        "revoke": """UPDATE holdfast_web_tokens SET revoked_at = :now, revoked_by = :actor
WHERE token_id = :token_id AND revoked_at IS NULL""",
        "end_sessions_of": "DELETE FROM holdfast_web_sessions WHERE token_id = :token_id",
        "used": "UPDATE holdfast_web_tokens SET used_at = :now WHERE token_id = :token_id",
        "add_session": """INSERT INTO holdfast_web_sessions (session_hash, token_id, actor, scope, expires_at)
VALUES (:session_hash, :token_id, :actor, :scope, :expires_at)""",
        "session": """SELECT s.actor, s.scope, s.expires_at, s.token_id FROM holdfast_web_sessions AS s
LEFT JOIN holdfast_web_tokens AS t ON t.token_id = s.token_id
WHERE s.session_hash = :session_hash AND s.expires_at > :now
    AND (s.token_id IS NULL OR (t.revoked_at IS NULL AND coalesce(t.expires_at, :now + 1) > :now))""",
        "end_session": "DELETE FROM holdfast_web_sessions WHERE session_hash = :session_hash",
        "forget_sessions": "DELETE FROM holdfast_web_sessions WHERE expires_at <= :now",
    },
    known_by=("name", "actor"),
)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token; its secret is not."""

    token_id: str
    name: str
    scope: Scope
    created_at: int
    created_by: str
    expires_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None
    used_at: int | None = None
    """The last use, to the minute."""

    def is_valid(self, now: int) -> bool:
        """May it be used at this time?"""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def actor(self) -> str:
        """What the journal calls whoever uses it."""
        return f"token:{self.name}"


class _HashedToken(Token, frozen=True, kw_only=True):
    secret_hash: str


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody at a browser, who has shown a token or a link for one use."""

    actor: str
    scope: Scope
    expires_at: int
    token_id: str | None


def _now() -> int:
    return time.time_ns() // 1_000_000


class TokenStore:
    """Tokens and sessions. Whatever is revoked, here or by another process, is refused from the next question on."""

    def __init__(self, tables: OpenTables, *, clock: Callable[[], int] = _now) -> None:
        self._tables = tables
        self._clock = clock
        self._noted: dict[str, int] = {}
        self._links: dict[str, tuple[BrowserSession, int]] = {}
        self._lock = threading.Lock()

    # --- tokens ---

    def create(self, name: str, scope: Scope, *, lifetime_ms: int | None, actor: str) -> tuple[Token, str]:
        """A new token, and the text that stands for it: shown now and never again."""
        now, token_id, secret = self._clock(), secrets.token_hex(8), secrets.token_hex(32)
        token = Token(
            token_id=token_id,
            name=checked_name(name, "token"),
            scope=scope,
            created_at=now,
            created_by=actor,
            expires_at=None if lifetime_ms is None else now + lifetime_ms,
        )
        try:
            self._tables.run(
                "add_token",
                token_id=token_id,
                name=name,
                secret_hash=_digest(secret),
                scope=scope.value,
                created_at=now,
                created_by=actor,
                expires_at=token.expires_at,
            )
        except RowRefused as error:
            raise TokenNameInUseError(name) from error
        return token, f"{PREFIX}_{token_id}_{secret}"

    def tokens(self) -> list[Token]:
        """Every token there ever was, the oldest first."""
        return self._tables.rows(Token, "tokens")

    def has_valid(self) -> bool:
        """Is there a token that can be used now?"""
        now = self._clock()
        return any(token.is_valid(now) for token in self.tokens())

    def revoke(self, name: str, *, actor: str) -> Token:
        """Revoke a token by name or id, with its sessions; TokenNotFoundError if there is none. Twice is once.

        Crash: the token and its sessions end together, or not.
        """
        with self._tables.writing() as session:
            found = session.rows(Token, "tokens_named", name=name)
            if not found:
                raise TokenNotFoundError(name)
            token_id = found[-1].token_id
            session.run("revoke", token_id=token_id, now=self._clock(), actor=actor)
            session.run("end_sessions_of", token_id=token_id)
            revoked = session.row(Token, "token", token_id=token_id)
        assert revoked is not None
        return revoked

    def token_of(self, text: str) -> Token | None:
        """The token that a text stands for, if it is valid now: as slow for a wrong secret as for an unknown token."""
        parts = _TOKEN.fullmatch(text)
        if parts is None:
            return None
        found = self._tables.row(_HashedToken, "token", token_id=parts[1])
        is_right = hmac.compare_digest(_digest(parts[2]), found.secret_hash if found else _NO_HASH)
        now = self._clock()
        if found is None or not is_right or not found.is_valid(now):
            return None
        self._note_use(found, now)
        return found

    def _note_use(self, token: Token, now: int) -> None:
        """Put the use on record, once a minute and beside the request: who reads must not wait for a writer."""
        with self._lock:
            last = max(token.used_at or 0, self._noted.get(token.token_id, 0))
            if now - last < USED_INTERVAL_MS:
                return
            self._noted[token.token_id] = now
        threading.Thread(target=self._write_use, args=(token.token_id, now), daemon=True).start()

    def _write_use(self, token_id: str, now: int) -> None:
        try:
            self._tables.run("used", token_id=token_id, now=now)
        except HoldfastError as error:
            log.warning("the use of a token could not be put on record: %s", error)

    # --- sessions ---

    def start_session(self, text: str) -> tuple[str, BrowserSession] | None:
        """A session for whoever shows a token or a link: the secret of its cookie. None for a wrong one.

        The cookie is not the token: a browser that loses it loses a session, and a log-out ends it everywhere.
        """
        now = self._clock()
        token = self.token_of(text)
        if token is not None:
            ends = min(now + SESSION_MS, token.expires_at or now + SESSION_MS)
            session = BrowserSession(actor=token.actor, scope=token.scope, expires_at=ends, token_id=token.token_id)
        else:
            with self._lock:
                link = self._links.pop(text, None)
            if link is None or link[1] <= now:
                return None
            session = msgspec.structs.replace(link[0], expires_at=now + SESSION_MS)
        secret = secrets.token_hex(32)
        with self._tables.writing() as transaction:
            transaction.run("forget_sessions", now=now)
            transaction.run(
                "add_session",
                session_hash=_digest(secret),
                token_id=session.token_id,
                actor=session.actor,
                scope=session.scope.value,
                expires_at=session.expires_at,
            )
        return secret, session

    def session_of(self, secret: str) -> BrowserSession | None:
        """The session of a cookie, if neither it nor its token has ended."""
        if not _SECRET.fullmatch(secret):
            return None
        return self._tables.row(BrowserSession, "session", session_hash=_digest(secret), now=self._clock())

    def end_session(self, secret: str) -> None:
        """Log out."""
        self._tables.run("end_session", session_hash=_digest(secret))

    def link(self, actor: str, scope: Scope) -> str:
        """A secret that begins one session, for ten minutes; it is in no table, and ends with the process."""
        secret = secrets.token_hex(32)
        session = BrowserSession(actor=actor, scope=scope, expires_at=0, token_id=None)
        with self._lock:
            self._links[secret] = (session, self._clock() + LINK_MS)
        return secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def token_store(services: Services) -> TokenStore:
    """The tokens of the engine that is served: `call.service(token_store)`."""
    return TokenStore(services.engine.tables(TABLES))
