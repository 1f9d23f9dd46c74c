"""Faults planted into the engine's code, to prove that the checker finds them: loaded with the app, never in src."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any

import msgspec

PLANTED_VARIABLE = "HISTORY_PLANTED"
EVERY = "*"


def plant() -> None:
    """Break what the environment names, in this process."""
    name = os.environ.get(PLANTED_VARIABLE, "")
    if name:
        PLANTS[name]()


def replace_in_statement(name: str, old: str, new: str) -> None:
    """Change a statement of both stores, or all that have this part; one that is in none is a mistake of the plant."""
    from holdfast.store.postgres import session
    from holdfast.store.sqlite import store

    for module, loader in ((store, "load_statements"), (session, "load_statements")):
        original = getattr(module, loader)

        def changed(package: str, dialect: str, original: Callable[..., Any] = original) -> dict[str, str]:
            statements = dict(original(package, dialect))
            changing = [one for one, sql in statements.items() if name in (one, EVERY) and old in sql]
            if not changing:
                raise AssertionError(f"statement {name} of {dialect} has no {old!r}")
            return statements | {one: statements[one].replace(old, new) for one in changing}

        setattr(module, loader, changed)


def unfenced_write() -> None:
    """A late worker, which has not noticed it, may write an effect of a job that others have taken over."""
    from holdfast.errors import LeaseLost
    from holdfast.store import commit as writing
    from holdfast.worker.leases import LeaseKeeper
    from holdfast.worker.run import LiveRun

    commit = writing._commit
    initialize, stop = LeaseKeeper.__init__, LiveRun.stop

    def unfenced(session: Any, commits: Any, answers: Any, worker_id: str) -> None:
        commit(session, commits, answers, worker_id)
        late = [one for index, one in commits if isinstance(answers[index], LeaseLost) and one.effect is not None]
        with session.running_effects() if late else nullcontext():
            for one in late:
                writing._apply_effect(session, one, worker_id)

    def unaware(self: Any, *given: Any, lost: Any, **named: Any) -> None:
        initialize(self, *given, lost=lambda run: None, **named)

    def careless(self: Any, error: Exception) -> None:
        if not isinstance(error, LeaseLost):
            stop(self, error)

    writing._commit = unfenced
    LiveRun.stop = careless  # type: ignore[method-assign]
    LeaseKeeper.__init__ = unaware  # type: ignore[method-assign]


def dropped_give_back() -> None:
    """A worker that stops forgets to give back what it has not finished."""
    from holdfast.core.step import EndCode
    from holdfast.store.commands import End
    from holdfast.worker.group_writer import GroupWriter

    put = GroupWriter.put

    def forgetful(self: Any, run: Any, write: Any) -> None:
        if isinstance(write, End) and write.code in (EndCode.RELEASED, EndCode.ABANDONED):
            self._written([(run, write, None)])
        else:
            put(self, run, write)

    GroupWriter.put = forgetful  # type: ignore[method-assign]


def doubled_effect() -> None:
    """What a failed commit step has written is kept, and written once more by its next try."""
    from holdfast.store.postgres.session import PostgresSession
    from holdfast.store.session import Session

    for kind in (Session, PostgresSession):
        if "undo_effect" in vars(kind):
            kind.undo_effect = lambda self: self.keep_effect()  # type: ignore[method-assign]


def limit_off_by_one() -> None:
    """A queue takes one more than its limit."""
    replace_in_statement(EVERY, "SELECT count(*) FROM executions AS e", "SELECT count(*) - 1 FROM executions AS e")


def lost_wake_up() -> None:
    """Nobody is told of new work."""
    from holdfast.store.postgres.store import PostgresStore
    from holdfast.store.sqlite.database import FifoNotifier

    FifoNotifier.notify = lambda self: None  # type: ignore[method-assign]
    PostgresStore._notify = lambda self, connection: None  # type: ignore[method-assign]


def lost_submit() -> None:
    """Some submits are acknowledged, and not made."""
    from holdfast.store.commands import Submitted
    from holdfast.store.sql_store import SqlStore

    submit = SqlStore.submit
    calls = count(1)

    def careless(self: Any, jobs: Any, *, actor: str) -> Any:
        if next(calls) % 7 == 0:
            return [Submitted(job.job_id, created=True) for job in jobs]
        return submit(self, jobs, actor=actor)

    SqlStore.submit = careless  # type: ignore[method-assign]


def skipped_cleanup() -> None:
    """A planned cleanup counts as done without having run."""
    from holdfast.core.step import Done
    from holdfast.worker.executor import Executor

    perform = Executor.perform

    def hasty(self: Any, run: Any) -> Any:
        if run.ending is not None and self.enter(run):
            return self.conclude(run, Done(None))
        return perform(self, run)

    Executor.perform = hasty  # type: ignore[method-assign]


def step_run_again() -> None:
    """A new execution begins with the last finished step, not with the first unfinished one."""
    from holdfast.store import lease

    # What others have finished passes for finished by this execution: it would lose its lease over it otherwise.
    replace_in_statement("evidence_step", " AND exec_id = :exec_id", "")
    claim_of = lease._claim_of

    def behind(row: Any) -> Any:
        claim = claim_of(row)
        return msgspec.structs.replace(claim, position=max(0, claim.position - 1))

    lease._claim_of = behind


def unwritten_journal() -> None:
    """One kind of change is not journaled."""
    from holdfast.store.session import Session

    journal = Session.journal

    def forgetful(self: Any, entry: Any) -> None:
        if not (entry.exec_from == "leased" and entry.exec_to == "in_progress"):
            journal(self, entry)

    Session.journal = forgetful  # type: ignore[method-assign]


def key_held_twice() -> None:
    """A second job with the key of an unfinished one is made, with the key kept from the database's own rule."""
    from holdfast.store.sql_store import SqlStore

    submit = SqlStore.submit
    numbers = count(1)

    def lax(self: Any, jobs: Any, *, actor: str) -> Any:
        renamed = [
            msgspec.structs.replace(job, key=f"{job.key}#{os.getpid()}.{next(numbers)}") if job.key else job
            for job in jobs
        ]
        return submit(self, renamed, actor=actor)

    SqlStore.submit = lax  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "unfenced-write": unfenced_write,
    "dropped-give-back": dropped_give_back,
    "doubled-effect": doubled_effect,
    "limit-off-by-one": limit_off_by_one,
    "lost-wake-up": lost_wake_up,
    "lost-submit": lost_submit,
    "skipped-cleanup": skipped_cleanup,
    "step-run-again": step_run_again,
    "unwritten-journal": unwritten_journal,
    "key-held-twice": key_held_twice,
}
