"""Idempotency-Key: a request that makes a job makes it once, however often it is sent, and whoever dies in between.

The id of the job is chosen and put on record before the job is submitted. Crash: whoever sends the request again finds
on record which job it was to be; it is there, or is submitted under that id now.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.errors import BadInput, JobNotFoundError, JobPrunedError
from holdfast.store.liveness import is_dead, new_worker_id
from holdfast.store.rows import new_ulid
from holdfast.tables import Tables
from holdfast.web.problems import Refused, status_of
from holdfast.web.routes import Call, Reply, Services

KEPT_MS = 24 * 3600 * 1000
"""How long a key stands for its first answer."""
BUSY_MS = 60_000
"""A request of a process that cannot be seen from here is taken for alive for so long."""
PRUNED_AT_ONCE = 500
PRUNE_EVERY = 60.0

_KEY = re.compile(r'"([\x20\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x5b\x5d-\x7e]{1,255})')

TABLES = Tables(
    "holdfast_idempotency",
    migrations=[
        """-- Requests that were sent with a key
        CREATE TABLE holdfast_idempotency (
            id TEXT PRIMARY KEY,
            request TEXT NOT NULL,
            job_id TEXT NOT NULL,
            owner TEXT NOT NULL,
            busy_until BIGINT NOT NULL,
            created_at BIGINT NOT NULL,
            answer TEXT
        )""",
        "-- Keys are forgotten by age\nCREATE INDEX holdfast_idempotency_age ON holdfast_idempotency (created_at)",
    ],
    statements={
        "reserve": (
            "INSERT INTO holdfast_idempotency (id, request, job_id, owner, busy_until, created_at)"
            " VALUES (:id, :request, :job_id, :owner, :busy_until, :now) ON CONFLICT (id) DO NOTHING RETURNING id"
        ),
        "reserved": "SELECT * FROM holdfast_idempotency WHERE id = :id",
        "take_over": (
            "UPDATE holdfast_idempotency SET owner = :owner, busy_until = :busy_until"
            " WHERE id = :id AND answer IS NULL AND owner = :seen AND busy_until = :seen_until RETURNING id"
        ),
        "answered": "UPDATE holdfast_idempotency SET answer = :answer, owner = '', busy_until = 0 WHERE id = :id",
        "let_go": (
            "UPDATE holdfast_idempotency SET owner = '', busy_until = 0"
            " WHERE id = :id AND owner = :owner AND answer IS NULL"
        ),
        "forget": "DELETE FROM holdfast_idempotency WHERE id = :id AND owner = :owner AND answer IS NULL",
        "forget_expired": "DELETE FROM holdfast_idempotency WHERE id = :id AND created_at < :before",
        "prune": (
            "DELETE FROM holdfast_idempotency WHERE id IN"
            " (SELECT id FROM holdfast_idempotency WHERE created_at < :before ORDER BY created_at LIMIT :most)"
        ),
    },
)


class _Reserved(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    request: str
    job_id: str
    owner: str
    busy_until: int
    answer: str | None


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer, to be given again."""

    status: int
    headers: dict[str, str]
    body: msgspec.Raw


class Keys:
    """The keys on record, and the requests of this process that are under way."""

    def __init__(self, services: Services) -> None:
        self._store = services.engine.store
        self._tables = services.engine.tables(TABLES)
        self._owner = new_worker_id()
        self._under_way: set[str] = set()
        self._lock = threading.Lock()
        self._prune_at = 0.0

    def once(self, call: Call, key: str, make: Callable[[str], Reply], there: Callable[[str], Reply]) -> Reply:
        """What `make(job_id)` answers, the first time; then that answer again. `there(job_id)` is for a job that is.

        Crash: the same call again makes exactly the job that the first one was to make.
        """
        who = call.principal.account or call.actor if call.principal else call.actor
        row_id = _digest(who, key)
        request = _digest(call.method, call.url_path, call.query_string, call.raw_body.decode("latin-1"))
        with self._lock:
            if row_id in self._under_way:
                raise _in_progress()
            self._under_way.add(row_id)
        try:
            return self._first_or_again(row_id, request, make, there)
        finally:
            with self._lock:
                self._under_way.discard(row_id)

    def _first_or_again(
        self, row_id: str, request: str, make: Callable[[str], Reply], there: Callable[[str], Reply]
    ) -> Reply:
        now = self._store.now()
        self._prune(now)
        job_id = new_ulid(now)
        terms = {"owner": self._owner, "busy_until": now + BUSY_MS}
        with self._tables.writing() as session:
            session.run("forget_expired", id=row_id, before=now - KEPT_MS)
            is_new = bool(session.run("reserve", id=row_id, request=request, job_id=job_id, now=now, **terms))
            found = None if is_new else session.row(_Reserved, "reserved", id=row_id)
        if found is not None:
            if found.request != request:
                raise Refused(
                    422,
                    "idempotency-key-reused",
                    "this Idempotency-Key was sent with another request",
                    hint="a key stands for one request: choose another for another",
                )
            if found.answer is not None:
                return _again(found.answer)
            self._take_over(found, now)
            job_id = found.job_id
        return self._answered(row_id, job_id, make, there, is_new=is_new)

    def _take_over(self, found: _Reserved, now: int) -> None:
        """Go on with a request that nobody works on any more; a problem if somebody does."""
        is_left = found.owner in ("", self._owner) or is_dead(found.owner, one_machine=self._store.one_machine)
        if not is_left and found.busy_until > now:
            raise _in_progress()
        terms = {"owner": self._owner, "busy_until": now + BUSY_MS}
        if not self._tables.run("take_over", id=found.id, seen=found.owner, seen_until=found.busy_until, **terms):
            raise _in_progress()

    def _answered(
        self, row_id: str, job_id: str, make: Callable[[str], Reply], there: Callable[[str], Reply], *, is_new: bool
    ) -> Reply:
        try:
            reply = there(job_id) if not is_new and self._is_there(job_id) else self._made(job_id, make, there)
        except Exception as error:
            # Refused for what it is, it has changed nothing and need not be remembered. Of any other error nobody
            # knows what it has left: the next one goes on under the same id.
            is_refused = isinstance(error, Refused) or (isinstance(error, BadInput) and status_of(type(error)) < 500)
            self._tables.run("forget" if is_refused and is_new else "let_go", id=row_id, owner=self._owner)
            raise
        body = msgspec.json.encode(reply.body)
        answer = _Answer(status=reply.status or 200, headers=reply.headers, body=msgspec.Raw(body))
        self._tables.run("answered", id=row_id, answer=msgspec.json.encode(answer).decode())
        return reply

    def _made(self, job_id: str, make: Callable[[str], Reply], there: Callable[[str], Reply]) -> Reply:
        try:
            return make(job_id)
        except BadInput:
            if self._is_there(job_id):  # by somebody who was taken for dead
                return there(job_id)
            raise

    def _is_there(self, job_id: str) -> bool:
        try:
            self._store.job(job_id)
        except JobPrunedError:
            return True
        except JobNotFoundError:
            return False
        return True

    def _prune(self, now: int) -> None:
        """Forget some of the keys whose time is over, now and then."""
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + PRUNE_EVERY
        self._tables.run("prune", before=now - KEPT_MS, most=PRUNED_AT_ONCE)


def once(call: Call, make: Callable[[str], Reply], there: Callable[[str], Reply]) -> Reply:
    """What `make(job_id)` answers; with an Idempotency-Key, once. Replies have data for a body, and a status."""
    given = call.headers.get("idempotency-key")
    if given is None:
        return make(new_ulid(call.engine.store.now()))
    match = _KEY.fullmatch(given.strip())
    if match is None:
        raise Refused(
            400,
            "invalid-idempotency-key",
            "the Idempotency-Key is not valid",
            hint='1 to 255 printable ASCII characters without quotes and backslashes: "8e03978e"',
        )
    return call.service(Keys).once(call, match[1] or match[2], make, there)


def _again(answer: str) -> Reply:
    first = msgspec.json.decode(answer, type=_Answer)
    headers = {**first.headers, "Idempotency-Replayed": "true"}
    return Reply(status=first.status, headers=headers, body=bytes(first.body))


def _in_progress() -> Refused:
    return Refused(
        409,
        "idempotency-key-in-progress",
        "a request with this Idempotency-Key is under way",
        hint="send it again in a moment",
        headers={"Retry-After": "1"},
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
