"""The first words of a statement, past all that a database skips before them: blanks, semicolons, comments."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.core.hash_chain import GENESIS, entry_hash
from holdfast.core.records import ACTOR_LIMIT, actor_text, storable
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.core.step import EndCode
from holdfast.errors import StoreError
from holdfast.sql_files import Dialect
from holdfast.store.commands import Journaled

_BLANK = re.compile(r"[\s;\ufeff]*")
_WORD = re.compile(r"[^\W\d][\w$]*")
_COMMENT_MARK = re.compile(r"/\*|\*/")


class Comments(NamedTuple):
    """How a dialect writes comments."""

    line_end: re.Pattern[str]
    nested: bool


SQLITE_COMMENTS = Comments(re.compile(r"\n"), nested=False)
POSTGRES_COMMENTS = Comments(re.compile(r"[\n\r]"), nested=True)


def leading_words(statement: str, count: int, comments: Comments) -> list[str]:
    """The first words in lower case, fewer if something else comes before; takes time in proportion to the text."""
    words: list[str] = []
    at = 0
    while len(words) < count:
        found = _WORD.match(statement, _past_skipped(statement, at, comments))
        if found is None:
            break
        words.append(found[0].lower())
        at = found.end()
    return words


def _past_skipped(statement: str, at: int, comments: Comments) -> int:
    while True:
        blank = _BLANK.match(statement, at)
        at = blank.end() if blank else at
        if statement.startswith("--", at):
            end = comments.line_end.search(statement, at)
            at = end.end() if end else len(statement)
        elif statement.startswith("/*", at):
            at = _past_block(statement, at + 2, comments)
        else:
            return at


def _past_block(statement: str, at: int, comments: Comments) -> int:
    """Behind the end of a comment whose beginning is behind us; one that has no end goes to the end of the text."""
    if not comments.nested:
        end = statement.find("*/", at)
        return len(statement) if end < 0 else end + 2
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(statement, at)
        if mark is None:
            return len(statement)
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at


# --- One open transaction, as the store's verbs use it: named statements, one time, one batch of journal entries ---

T = TypeVar("T")

GIVEN = "given"
"""Where the metadata of an entry has what an operator has given with the action."""

_encode = msgspec.json.Encoder().encode

_PLAIN: dict[str, str] = {member: member.value for kind in (JobState, ExecutionStatus, EndCode) for member in kind}
"""Members of enumerations as plain text: sqlite3 looks for an adapter for all else, and finds none every time."""

TRANSACTION_CONTROL = frozenset(
    {"begin", "commit", "end", "rollback", "savepoint", "release", "attach", "detach", "vacuum", "pragma"}
)
"""What would end the transaction, or change the connection that it runs on."""
EXPLAINED = ("explain", "query", "plan")


def to_json(value: object) -> str:
    """A batch as the JSON functions of the database want it; what no database takes in a text is made visible."""
    try:
        text = _encode(value).decode()
    except UnicodeError:
        return _encode(_storable(value)).decode()
    # An escape may also stand for itself, in a text that is JSON: only real NULs are replaced.
    return _encode(_storable(value)).decode() if "\\u0000" in text else text


def _storable(value: Any) -> Any:
    """The value with every text in it made storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {_storable(name): _storable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return _storable(msgspec.structs.asdict(value))
    return value


def storable_texts(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a statement with every text in them made storable."""
    return {name: _storable(value) for name, value in parameters.items()}


def storable_values(values: Sequence[Any]) -> list[Any]:
    """The same for parameters without names."""
    return [_storable(value) for value in values]


class ResultRows(Protocol):
    """The answer of a statement."""

    @property
    def description(self) -> Any:
        """The columns, each beginning with its name."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows that have not been fetched."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...

    def fetchmany(self, size: int = ..., /) -> list[Any]:
        """The next rows, at most so many."""
        ...

    @property
    def rowcount(self) -> int:
        """How many rows were changed, or returned."""
        ...

    def close(self) -> None:
        """Read no more of them."""
        ...


class Connection(Protocol):
    """As much of a database connection as the verbs need."""

    @property
    def in_transaction(self) -> bool:
        """Is a transaction open?"""
        ...

    def execute(self, sql: Any, parameters: Any = ..., /) -> ResultRows:
        """Run one statement."""
        ...


class Session:
    """A transaction of the store. Entries given to `journal` are appended, in order, when it ends."""

    dialect: Dialect = "sqlite"
    __slots__ = ("_entries", "_sql", "changed_work", "connection", "journaled", "left_waiting", "metadata", "now")

    def __init__(self, connection: Connection, sql: Mapping[str, str], now: int) -> None:
        self.connection = connection
        self.now = now
        self._sql = sql
        self.changed_work = False
        self.left_waiting = False
        """Has a job ended for which others may wait? They are told in transactions of their own."""
        self.metadata: Mapping[str, Any] = {}
        """What an operator has given with the action; it goes into every entry of the transaction."""
        self._entries: list[Journaled] = []
        self.journaled: list[Journaled] = []

    def run(self, statement: str, **parameters: Any) -> ResultRows:
        """Execute a statement of statements.sql by its name. A text that no database takes is made visible."""
        try:
            return self.connection.execute(self._sql[statement], parameters)
        except UnicodeEncodeError:
            # Raised before anything is sent.
            return self.connection.execute(self._sql[statement], storable_texts(parameters))

    def run_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> None:
        """Execute a statement for all these rows."""
        self.run(statement, batch=to_json(rows), **parameters)

    def fetch_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> list[Any]:
        """The same for a statement that returns something."""
        return self.run(statement, batch=to_json(rows), **parameters).fetchall()

    def first(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, or None; the statement is run to its end."""
        rows = self.run(statement, **parameters).fetchall()
        return rows[0][0] if rows else None

    def select_jobs(self, where: Mapping[str, str], states: Collection[JobState], limit: int) -> ResultRows:
        """Jobs whose columns have these values and that are in one of these states, if any are given, newest first."""
        conditions = [f"{column} = :{column}" for column in where]
        if states:
            quoted = ", ".join(f"'{JobState(state)}'" for state in sorted(states))
            conditions.append(f"state IN ({quoted})")
            if JobState.SUCCEEDED not in states:
                conditions.append("state <> 'succeeded'")  # lets the index of unsettled jobs be used
        sql = f"SELECT * FROM jobs WHERE {' AND '.join(conditions) or 'true'} ORDER BY job_id DESC LIMIT :limit"  # noqa: S608
        return self.run_planned(sql, {**where, "limit": limit})

    def run_planned(self, sql: str, parameters: Mapping[str, Any]) -> ResultRows:
        """A statement with `:name` parameters, planned for these very values: of some there are few, of others many."""
        return self.connection.execute(self.in_dialect(sql), parameters)

    def in_dialect(self, sql: str) -> str:
        """A statement with `:name` parameters as this database wants it."""
        return sql

    def digest_of(self, column: str) -> str:
        """The digest of a text column, as SQL: core.evidence.digest, made where the text is."""
        raise NotImplementedError

    def attempt(self, sql: str, parameters: Mapping[str, Any]) -> tuple[list[Any], str | None]:
        """The rows of a look, or why they cannot be read: damage is an answer, only an absent database is an error."""
        raise NotImplementedError

    def lock_jobs(self, job_ids: Iterable[str]) -> None:
        """Keep others from changing these jobs until the end of the transaction, where that is not so anyway."""
        if "lock_jobs" in self._sql:
            self.run("lock_jobs", batch=to_json(sorted(set(job_ids))))

    def try_lock_jobs(self, job_ids: Sequence[str]) -> set[str]:
        """The same for those of them that nobody else holds: which they are."""
        if "lock_free_jobs" not in self._sql:
            return set(job_ids)
        return {job_id for (job_id,) in self.run("lock_free_jobs", batch=to_json(sorted(job_ids)))}

    def lock_queues(self, slots: Mapping[str, int]) -> Mapping[str, int]:
        """Of these limited queues the free slots of those that nobody else counts until the end of the transaction."""
        if "lock_queues" not in self._sql or not slots:
            return slots
        ours = [name for (name,) in self.run("lock_queues", batch=to_json(sorted(slots)))]
        # Counted before the lock was ours, they may have been given away meanwhile.
        return dict(self.run("open_slots", batch=to_json(ours)).fetchall()) if ours else {}

    def release_waiting(self, job_ids: Sequence[str], limit: int) -> None:
        """The jobs have succeeded: whoever waited may start; if those are too many, the rest is left for later."""
        batch = to_json(job_ids)
        if len(self.run("release_waiting", batch=batch, now=self.now, limit=limit).fetchall()) >= limit:
            self.run("keep_releases", batch=batch)

    def is_open(self) -> bool:
        """Is the transaction still there? A statement of the user's may have ended it."""
        return bool(self.connection.in_transaction)

    def refuse_ended(self) -> None:
        """Raise if the transaction is gone: what is run now would be run outside of it."""
        if not self.is_open():
            raise StoreError("the transaction has ended", hint="a statement made the database give it up")

    def is_lost_connection(self, _error: BaseException) -> bool:
        """Does this error of an effect mean that the connection is gone, though it may not show yet?"""
        return False

    def said_goodbye(self) -> BaseException | None:
        """Why the database has ended the transaction while no statement was under way, if it has."""
        return None

    def passing(self, _error: BaseException) -> Exception | None:
        """Our error for one of the user's statements that is the disk's fault, and passes; None for all else."""
        return None

    def passing_in_submit(self, error: BaseException) -> Exception | None:
        """The same for a statement of the store's own, which others may also be in the way of."""
        return self.passing(error)

    def refused_word(self, sql: str) -> str | None:
        """The word by which a statement of the user's would steer the transaction or the connection, if it does."""
        # SQLite runs some pragmas while it prepares them, be it only to explain them.
        words = [word for word in leading_words(sql, 4, SQLITE_COMMENTS) if word not in EXPLAINED]
        return words[0] if words and words[0] in TRANSACTION_CONTROL else None

    def running_effects(self) -> AbstractContextManager[None]:
        """Inside, the user's code runs and may use the transaction."""
        return nullcontext()

    def begin_effect(self) -> None:
        """What the user's code writes from here on can be taken back on its own."""
        self.connection.execute("SAVEPOINT effect")

    def keep_effect(self) -> None:
        """Make it a part of the transaction."""
        self.connection.execute("RELEASE effect")

    def undo_effect(self) -> None:
        """Take it back."""
        self.connection.execute("ROLLBACK TO effect")
        self.connection.execute("RELEASE effect")

    def execute_effect(self, sql: str, parameters: Any) -> ResultRows:
        """Run one statement of the user's; if it fails, what the effect has done before still stands."""
        return self.connection.execute(sql, parameters)

    def execute_own_effect(self, sql: str, parameters: Any) -> ResultRows:
        """The same for a statement about tables beside the engine's, where names are looked up among those."""
        return self.execute_effect(sql, parameters)

    def execute_effect_many(self, sql: str, parameters: Any) -> ResultRows | None:
        """Run one statement of the user's for each set of parameters."""
        with ExitStack() as opened:
            rows: ResultRows | None = None
            for one in parameters:
                opened.close()
                # What gives the parameters is code of the user's: it may have ended the transaction, and caught that.
                self.refuse_ended()
                rows = self.connection.execute(sql, one)
                opened.callback(rows.close)
            opened.pop_all()
        return rows

    def submit_in_effect(self, submit: Callable[[], T]) -> T:
        """Run statements of the store's own in the midst of the user's."""
        return submit()

    def journal(self, entry: Journaled) -> None:
        """Have this change journaled in the transaction that makes it."""
        plain = entry.reason.isascii() and entry.actor.isascii() and len(entry.actor) <= ACTOR_LIMIT
        if not plain or "\0" in entry.reason or "\0" in entry.actor:
            # Before it is hashed: what is read back has to have the same hash.
            entry = msgspec.structs.replace(entry, reason=storable(entry.reason), actor=actor_text(entry.actor))
        if self.metadata:
            # Under a name of its own: what the engine notes is evidence, and nobody else may write it.
            noted = msgspec.json.decode(entry.metadata, type=dict[str, msgspec.Raw])
            entry = msgspec.structs.replace(entry, metadata=to_json({**noted, GIVEN: self.metadata}))
        self._entries.append(entry)

    def expect_journal(self, job_ids: Iterable[str]) -> None:
        """These jobs, which nobody else can change meanwhile, are going to be journaled; for who can ask ahead."""

    def journal_heads(self, job_ids: Sequence[str]) -> Iterable[tuple[str, int, str]]:
        """The last entry of each job that has one: job, number, hash."""
        return self.run("journal_heads", batch=to_json(job_ids))

    def journal_mark(self) -> int:
        """Where the journal of this transaction stands, for drop_journal_after."""
        return len(self._entries)

    def drop_journal_after(self, mark: int) -> None:
        """Forget the entries of changes that were taken back."""
        del self._entries[mark:]

    def flush_journal(self) -> None:
        """Chain the entries to what is there: one statement reads the heads, one adds the rows."""
        if not self._entries:
            return
        # A job that became pending or ended is news to workers and waiters.
        self.changed_work |= any(entry.job_to != JobState.RUNNING for entry in self._entries)
        # Before the entry that a job begins with there is none.
        new = {entry.job_id for entry in self._entries if entry.job_from is None}
        jobs = list({entry.job_id for entry in self._entries} - new)
        rows_of_heads = self.journal_heads(jobs) if jobs else ()
        heads: dict[str, tuple[int, str]] = {job_id: (seq, head) for job_id, seq, head in rows_of_heads}
        rows = []
        plain: Callable[[Any, Any], Any] = _PLAIN.get
        for e in self._entries:
            seq, prev_hash = heads.get(e.job_id, (0, GENESIS))
            seq += 1
            content = (
                e.job_id, seq, self.now, e.actor, e.exec_id, plain(e.job_from, e.job_from), plain(e.job_to, e.job_to),
                plain(e.exec_from, e.exec_from), plain(e.exec_to, e.exec_to), e.step, plain(e.reason, e.reason),
                e.metadata,
            )  # fmt: skip
            new_hash = entry_hash(prev_hash, *content)
            heads[e.job_id] = (seq, new_hash)
            rows.append((*content, prev_hash, new_hash))
        self.run_rows("insert_journal", rows)
        self.journaled, self._entries = self._entries, []
