"""The database keeps the rules itself: a stray shell, sqlite3 or psql, tries to break each of them and is refused."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from holdfast.core.states import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    Disposition,
    ExecutionStatus,
    JobState,
    disposition_transitions,
)
from holdfast.store.commands import Claim
from tests.support.backends import Backend, PostgresBackend, Shell, is_refusal, on_postgres, on_sqlite
from tests.support.bench import FINGERPRINT, OLD, OPERATOR, Bench, commit, finish, finish_step


@pytest.fixture
def shell(bench: Bench, backend: Backend) -> Iterator[Shell]:
    """As a person at a prompt has it: no foreign keys, no settings, and every statement is its own transaction."""
    with backend.shell() as shell:
        yield shell


def refused(shell: Shell, statement: str) -> str:
    """The message with which the database refuses the statement."""
    with pytest.raises(Exception) as caught:
        shell.execute(statement)
    assert is_refusal(caught.value), caught.value
    return str(caught.value)


def lease(claim: Claim, *, status: str = "leased", attempt: int = 2, disposition: str = "NULL") -> str:
    return lease_of(claim.job.job_id, status=status, attempt=attempt, disposition=disposition)


def lease_of(job_id: str, *, attempt: int, status: str = "leased", disposition: str = "NULL") -> str:
    return (
        "INSERT INTO executions (exec_id, job_id, attempt, queue, status, disposition, lease_owner, lease_expires_at,"
        f" progressed_at, started_at) VALUES ('stray', '{job_id}', {attempt}, '', '{status}', {disposition}, 'me',"
        " 9e12, 1, 1)"
    )


# --- executions --------------------------------------------------------------------------------------------


def test_a_job_has_one_committed_execution_for_ever(bench: Bench, shell: Shell) -> None:
    claim = bench.committed()

    message = refused(shell, lease(claim))

    assert "holdfast" in message or "executions_one_commit" in message
    assert len(bench.store.executions(claim.job.job_id)) == 1
    bench.assert_sound()


def test_the_index_alone_refuses_a_second_commit(bench: Bench, backend: Backend, shell: Shell) -> None:
    """Should the triggers be gone, INV_001 is still kept."""
    claim = bench.committed()
    backend.without_triggers(shell)

    message = refused(shell, lease(claim, status="committed"))

    assert "executions" in message


def test_a_job_has_one_live_execution(bench: Bench, shell: Shell) -> None:
    claim = bench.running()

    refused(shell, lease(claim))

    assert len(bench.store.executions(claim.job.job_id)) == 1


@pytest.mark.parametrize("status", [s for s in ExecutionStatus if s is not ExecutionStatus.LEASED])
def test_an_execution_starts_as_leased(bench: Bench, shell: Shell, status: ExecutionStatus) -> None:
    claim = bench.running()
    bench.crash()
    disposition = "'retry'" if status is ExecutionStatus.ABORTED else "NULL"

    refused(shell, lease(claim, status=status, disposition=disposition))

    assert bench.state(claim.job.job_id) is JobState.PENDING


@pytest.mark.parametrize("attempt", [-1, 0, 1, 3, 99])
def test_an_execution_is_the_next_attempt_and_no_other(bench: Bench, shell: Shell, attempt: int) -> None:
    claim = bench.running()
    bench.crash()

    refused(shell, lease(claim, attempt=attempt))

    assert bench.job(claim.job.job_id).attempt == 1
    bench.assert_sound()


@pytest.mark.parametrize("disposition", [Disposition.FAILED, Disposition.QUARANTINED])
def test_a_job_that_has_failed_is_not_leased_again(bench: Bench, shell: Shell, disposition: Disposition) -> None:
    claim = bench.running()
    bench.store.fail(claim.job.job_id, actor=OPERATOR, reason="x", quarantine=disposition is Disposition.QUARANTINED)

    refused(shell, lease(claim))

    assert bench.state(claim.job.job_id).value == disposition.value


def put_at(bench: Bench, status: ExecutionStatus) -> Claim:
    """A job whose execution has that status."""
    if status is ExecutionStatus.LEASED:
        bench.submit(**OLD)
        return bench.take()
    claim = bench.running()
    if status in (ExecutionStatus.COMMITTED, ExecutionStatus.DONE):
        bench.apply(commit(claim))
    if status is ExecutionStatus.DONE:
        bench.apply(finish(claim))
    if status is ExecutionStatus.ABORTED:
        bench.crash()
    return claim


def change_status(claim: Claim, status: ExecutionStatus) -> str:
    disposition = "'retry'" if status is ExecutionStatus.ABORTED else "NULL"
    finished = "9e12" if status in (ExecutionStatus.ABORTED, ExecutionStatus.DONE) else "NULL"
    return (
        f"UPDATE executions SET status = '{status}', disposition = {disposition}, finished_at = {finished}"
        f" WHERE exec_id = '{claim.exec_id}'"
    )


ILLEGAL = [(a, b) for a in ExecutionStatus for b in ExecutionStatus if a != b and b not in EXECUTION_TRANSITIONS[a]]
LEGAL = [(a, b) for a in ExecutionStatus for b in sorted(EXECUTION_TRANSITIONS[a])]


@pytest.mark.parametrize("before, after", ILLEGAL)
def test_a_transition_that_the_table_does_not_have_is_refused(
    bench: Bench, shell: Shell, before: ExecutionStatus, after: ExecutionStatus
) -> None:
    claim = put_at(bench, before)

    refused(shell, change_status(claim, after))

    assert bench.status(claim) is before


@pytest.mark.parametrize("before, after", LEGAL)
def test_a_legal_transition_moves_the_job_along(
    bench: Bench, shell: Shell, before: ExecutionStatus, after: ExecutionStatus
) -> None:
    claim = put_at(bench, before)

    shell.execute(change_status(claim, after))

    assert bench.status(claim) is after
    [(stored, projected)] = shell.execute(
        "SELECT j.state, p.state FROM jobs AS j JOIN job_projection AS p USING (job_id)"
    ).fetchall()
    assert stored == projected


LEGAL_DISPOSITIONS = disposition_transitions()


@pytest.mark.parametrize("before", Disposition)
@pytest.mark.parametrize("after", Disposition)
def test_the_meaning_of_an_aborted_execution_changes_only_as_the_table_allows(
    bench: Bench, shell: Shell, before: Disposition, after: Disposition
) -> None:
    claim = bench.running()
    if before is Disposition.RETRY:
        bench.crash()
    else:
        bench.store.fail(claim.job.job_id, actor=OPERATOR, reason="x", quarantine=before is Disposition.QUARANTINED)
    statement = f"UPDATE executions SET disposition = '{after}' WHERE exec_id = '{claim.exec_id}'"

    if before != after and (before, after) not in LEGAL_DISPOSITIONS:
        refused(shell, statement)
        after = before
    else:
        shell.execute(statement)

    assert bench.latest(claim.job.job_id).disposition is after


@pytest.mark.parametrize(
    "change",
    [
        "exec_id = 'other'",
        "job_id = 'other'",
        "attempt = 7",
        "lease_owner = 'me'",
        "queue = 'other'",
        "status = 'nonsense'",
    ],
)
def test_what_identifies_an_execution_does_not_change(bench: Bench, shell: Shell, change: str) -> None:
    claim = bench.running()
    before = bench.latest(claim.job.job_id)

    refused(shell, f"UPDATE executions SET {change}")

    assert bench.latest(claim.job.job_id) == before


@pytest.mark.parametrize(
    "change", ["finished_at = 5", "lease_expires_at = 9e12", "status = 'leased'", "code = 'x'", "error = 'x'"]
)
@pytest.mark.parametrize("status", [ExecutionStatus.DONE, ExecutionStatus.ABORTED])
def test_an_ended_execution_does_not_change(bench: Bench, shell: Shell, status: ExecutionStatus, change: str) -> None:
    claim = put_at(bench, status)
    before = bench.latest(claim.job.job_id)

    refused(shell, f"UPDATE executions SET {change}")

    assert bench.latest(claim.job.job_id) == before


@pytest.mark.parametrize("status", ExecutionStatus)
def test_an_execution_is_never_deleted(bench: Bench, shell: Shell, status: ExecutionStatus) -> None:
    claim = put_at(bench, status)

    refused(shell, "DELETE FROM executions")

    assert bench.status(claim) is status


# --- jobs --------------------------------------------------------------------------------------------------

PREPARED = {
    JobState.PENDING: lambda bench: bench.submit(),
    JobState.RUNNING: lambda bench: bench.running().job.job_id,
    JobState.SUCCEEDED: lambda bench: bench.succeeded(),
    JobState.FAILED: lambda bench: bench.ended(Disposition.FAILED),
    JobState.QUARANTINED: lambda bench: bench.ended(Disposition.QUARANTINED),
}


@pytest.mark.parametrize("before", JobState)
@pytest.mark.parametrize("after", [*JobState, "nonsense", ""])
def test_the_state_of_a_job_is_not_for_anybody_to_write(
    bench: Bench, shell: Shell, before: JobState, after: str
) -> None:
    job_id = PREPARED[before](bench)
    if before == after and before is not JobState.SUCCEEDED:
        shell.execute(f"UPDATE jobs SET state = '{after}'")
    else:
        refused(shell, f"UPDATE jobs SET state = '{after}'")

    assert bench.state(job_id) is before


def test_every_state_is_in_the_table_that_was_tried() -> None:
    assert set(PREPARED) == set(JobState) == set(JOB_TRANSITIONS)


@pytest.mark.parametrize(
    "change", ["priority = 5", "updated_at = 1", "not_before = 1", "cancel_reason = 'x'", "attempt = 9"]
)
def test_a_succeeded_job_does_not_change(bench: Bench, shell: Shell, change: str) -> None:
    job_id = bench.succeeded()
    before = bench.job(job_id)

    refused(shell, f"UPDATE jobs SET {change}")

    assert bench.job(job_id) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE steps SET response = '{\"forged\":true}'",
        "DELETE FROM steps",
        "INSERT INTO steps SELECT job_id, position + 1, 'more', exec_id, 1, 1, 1, '{}', '' FROM steps",
    ],
)
def test_the_answer_of_a_succeeded_job_does_not_change(bench: Bench, shell: Shell, statement: str) -> None:
    job_id = bench.succeeded()
    before = bench.store.steps(job_id)

    refused(shell, statement)

    assert bench.store.steps(job_id) == before


@pytest.mark.parametrize("column", ["attempt", "failures", "crashes"])
@pytest.mark.parametrize("value", [0, -1])
def test_attempts_only_grow(bench: Bench, shell: Shell, column: str, value: int) -> None:
    job_id = bench.submit(failure_limit=9, crash_limit=9)
    bench.take()
    bench.crash()
    bench.take()
    bench.store.fail(job_id, actor=OPERATOR, reason="x", quarantine=False)
    before = bench.job(job_id)

    refused(shell, f"UPDATE jobs SET {column} = {value}")

    assert bench.job(job_id) == before


@pytest.mark.parametrize("column", ["job_id", "flow", "key", "parent", "run_after", "created_at"])
@pytest.mark.parametrize("value", ["'other'", "NULL"])
def test_what_identifies_a_job_does_not_change(bench: Bench, shell: Shell, column: str, value: str) -> None:
    job_id = bench.submit(key="k", parent="p", run_after=bench.succeeded())
    before = bench.job(job_id)

    refused(shell, f"UPDATE jobs SET {column} = {value} WHERE job_id = '{job_id}'")

    assert bench.job(job_id) == before


@pytest.mark.parametrize("values", ["'running', 0", "'succeeded', 0", "'failed', 0", "'pending', 1", "'nonsense', 0"])
def test_a_job_starts_as_pending_without_attempts(bench: Bench, shell: Shell, values: str) -> None:
    bench.submit()

    refused(
        shell,
        "INSERT INTO jobs (job_id, flow, fingerprint, created_at, updated_at, state, attempt)"
        f" VALUES ('stray', 'demo', '{FINGERPRINT}', 1, 1, {values})",
    )

    assert len(bench.store.jobs()) == 1


def test_two_unfinished_jobs_cannot_have_one_key(bench: Bench, shell: Shell) -> None:
    bench.submit(key="k")

    refused(
        shell,
        "INSERT INTO jobs (job_id, flow, fingerprint, created_at, updated_at, key) VALUES ('x',"
        f" 'demo', '{FINGERPRINT}', 1, 1, 'k')",
    )

    assert len(bench.store.jobs()) == 1


@pytest.mark.parametrize("state", JobState)
def test_a_job_is_never_deleted(bench: Bench, shell: Shell, state: JobState) -> None:
    job_id = PREPARED[state](bench)

    refused(shell, "DELETE FROM jobs")

    assert bench.state(job_id) is state


# --- requests, journal, what was pruned --------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["UPDATE requests SET request = '{}'", "DELETE FROM requests"])
def test_a_request_does_not_change(bench: Bench, shell: Shell, statement: str) -> None:
    job_id = bench.submit(request='{"n":9}')

    refused(shell, statement)

    assert bench.store.request(job_id) == '{"n":9}'


@pytest.mark.parametrize("statement", ["UPDATE definitions SET definition = '{}'", "DELETE FROM definitions"])
def test_a_definition_that_a_job_is_pinned_to_does_not_change(bench: Bench, shell: Shell, statement: str) -> None:
    bench.submit()
    before = dict(bench.store.definitions())

    refused(shell, statement)

    assert bench.store.definitions() == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET reason = 'nothing happened' WHERE seq = 2",
        "UPDATE journal SET actor = 'somebody else'",
        "UPDATE journal SET hash = 'x'",
        "DELETE FROM journal",
        "DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)",
    ],
)
def test_the_journal_is_append_only(bench: Bench, shell: Shell, statement: str) -> None:
    claim = bench.running()
    before = bench.journal(claim.job.job_id)

    refused(shell, statement)

    assert bench.journal(claim.job.job_id) == before


@pytest.mark.parametrize("seq, prev_hash", [(4, "made up"), (5, ""), (1, ""), (9, "?"), (0, "")])
def test_a_journal_entry_follows_the_one_before(bench: Bench, shell: Shell, seq: int, prev_hash: str) -> None:
    claim = bench.running()

    refused(
        shell,
        f"INSERT INTO journal VALUES ('{claim.job.job_id}', {seq}, 1, 'me', NULL, 'running',"
        " 'running', NULL, NULL, NULL,"
        f" 'x', '{{}}', '{prev_hash}', 'h')",
    )

    assert len(bench.journal(claim.job.job_id)) == 3


def test_one_false_entry_among_true_ones_refuses_them_all(bench: Bench, shell: Shell) -> None:
    """A rule that is asked once for a whole statement still sees each of its rows."""
    claim = bench.running()
    head = bench.journal(claim.job.job_id)[-1].hash
    rows = [
        f"('{claim.job.job_id}', {seq}, 1, 'me', NULL, 'running', 'running', NULL, NULL, NULL, 'x', '{{}}',"
        f" '{prev}', 'h')"
        for seq, prev in [(4, head), (5, "made up")]
    ]

    refused(shell, f"INSERT INTO journal VALUES {', '.join(rows)}")

    assert len(bench.journal(claim.job.job_id)) == 3
    bench.assert_sound()


@pytest.mark.parametrize("attempt", ["1", "2"])
def test_one_illegal_lease_among_legal_ones_refuses_them_all(bench: Bench, shell: Shell, attempt: str) -> None:
    running, waiting = bench.running().job.job_id, bench.submit()

    refused(
        shell,
        "INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at,"
        f" started_at) SELECT job_id, job_id, CASE job_id WHEN '{waiting}' THEN 1 ELSE {attempt} END, '', 'leased',"
        " 'me', 9, 1, 1 FROM jobs",
    )

    assert (bench.state(running), bench.state(waiting)) == (JobState.RUNNING, JobState.PENDING)
    assert not bench.store.executions(waiting)
    bench.assert_sound()


@pytest.mark.parametrize("statement", ["UPDATE pruned SET head = 'x'", "DELETE FROM pruned"])
def test_the_record_of_what_was_pruned_does_not_change(bench: Bench, shell: Shell, statement: str) -> None:
    bench.succeeded()
    bench.store.prune(before=bench.clock() + 1, limit=9, actor=OPERATOR, dry_run=False)
    before = dict(bench.store.pruned_heads())

    refused(shell, statement)

    assert bench.store.pruned_heads() == before


@pytest.mark.parametrize("head", ["'made up'", "(SELECT hash FROM journal ORDER BY seq DESC LIMIT 1)"])
@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_an_unfinished_job_cannot_be_declared_pruned(bench: Bench, shell: Shell, state: JobState, head: str) -> None:
    """A row in `pruned` is the key that lets rows go: it must not be for anybody to write."""
    job_id = PREPARED[state](bench)

    refused(shell, f"INSERT INTO pruned VALUES ('{job_id}', 'demo', 'succeeded', 1, 1, {head}, 1, 'me')")

    assert bench.store.pruned_heads() == {}


def test_an_ended_job_cannot_be_declared_pruned_under_a_false_head(bench: Bench, shell: Shell) -> None:
    job_id = bench.succeeded()

    refused(shell, f"INSERT INTO pruned VALUES ('{job_id}', 'demo', 'succeeded', 1, 5, 'made up', 1, 'me')")

    assert bench.store.pruned_heads() == {}


# --- what belongs to a job ---------------------------------------------------------------------------------


STRAYS = {
    "an execution": lease_of("nobody", attempt=1),
    "a step": "INSERT INTO steps SELECT 'nobody', position, step, exec_id, 1, 1, 1, '{}' FROM steps",
    "one step of two": "INSERT INTO steps SELECT CASE n WHEN 0 THEN job_id ELSE 'nobody' END, 7 + n, step, exec_id, 1,"
    " 1, 1, '{}' FROM steps, generate_series(0, 1) AS n",
    "a request": "INSERT INTO requests VALUES ('nobody', '{}')",
}


@on_postgres
@pytest.mark.parametrize("statement", STRAYS.values(), ids=STRAYS)
def test_nothing_belongs_to_a_job_that_is_not_there(bench: Bench, shell: Shell, statement: str) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim))
    before = everything(bench, claim.job.job_id)

    refused(shell, statement)

    assert everything(bench, claim.job.job_id) == before
    bench.assert_sound()


def declare_pruned(shell: Shell) -> None:
    shell.execute(
        "INSERT INTO pruned SELECT job_id, flow, state, 1, seq, hash, 1, 'me' FROM jobs JOIN journal USING (job_id)"
        " ORDER BY seq DESC LIMIT 1"
    )


@on_postgres
@pytest.mark.parametrize("left", ["requests", "executions", "steps"])
def test_a_job_goes_after_what_belongs_to_it(bench: Bench, shell: Shell, left: str) -> None:
    job_id = bench.succeeded()
    declare_pruned(shell)
    for table in {"requests", "executions", "steps"} - {left}:
        shell.execute(f"DELETE FROM {table}")

    refused(shell, "DELETE FROM jobs")

    assert bench.state(job_id) is JobState.SUCCEEDED


@on_postgres
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_job_is_not_removed_by_one_who_could_not_see_what_was_added_to_it(
    bench: Bench, shell: Shell, level: str
) -> None:
    job_id = bench.succeeded()
    declare_pruned(shell)
    for table in ("requests", "steps", "executions"):
        shell.execute(f"DELETE FROM {table}")
    shell.execute(f"BEGIN ISOLATION LEVEL {level}")

    refused(shell, "DELETE FROM jobs")

    shell.execute("ROLLBACK")
    assert bench.state(job_id) is JobState.SUCCEEDED


@on_postgres
def test_a_request_keeps_its_job_from_being_removed_until_it_is_there(
    bench: Bench, backend: Backend, shell: Shell
) -> None:
    """As a foreign key does: whoever removes the job meanwhile waits, and then finds the request."""
    job_id = bench.ended()
    with backend.shell() as remover:
        declare_pruned(remover)
        for table in ("requests", "executions"):
            remover.execute(f"DELETE FROM {table}")
        remover.execute("SET lock_timeout = '50ms'")
        shell.execute("BEGIN")
        shell.execute(f"INSERT INTO requests VALUES ('{job_id}', '{{}}')")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            remover.execute("DELETE FROM jobs")
        shell.execute("COMMIT")

        refused(remover, "DELETE FROM jobs")

    assert bench.state(job_id) is JobState.FAILED


# --- REPLACE deletes without firing triggers ---------------------------------------------------------------

REPLACES = {
    "a succeeded job by a pending one": "INSERT OR REPLACE INTO jobs (job_id, flow, fingerprint,"
    " created_at, updated_at)"
    " SELECT job_id, flow, fingerprint, 1, 1 FROM jobs",
    "an execution by another": "INSERT OR REPLACE INTO executions SELECT 'x', job_id, attempt,"
    " queue, 'leased', NULL, NULL,"
    " NULL, 'me', 9e12, 0, 0, 0, NULL, 1, NULL, 1, NULL, NULL, NULL FROM executions",
    "an execution of the same id": "INSERT OR REPLACE INTO executions SELECT exec_id, 'other-job',"
    " 1, queue, 'leased', NULL,"
    " NULL, NULL, 'me', 9e12, 0, 0, 0, NULL, 1, NULL, 1, NULL, NULL, NULL FROM executions",
    "the answer": "INSERT OR REPLACE INTO steps SELECT job_id, position, step, exec_id, 1, 1, 1, '{}', '' FROM steps",
    "a request": "REPLACE INTO requests SELECT job_id, '{}' FROM jobs",
    "a definition": "REPLACE INTO definitions SELECT fingerprint, flow, '{}', 1 FROM definitions",
    "an entry of the journal": "REPLACE INTO journal SELECT job_id, seq, at, 'me', exec_id,"
    " job_from, job_to, exec_from,"
    " exec_to, step, 'forged', metadata, prev_hash, hash FROM journal WHERE seq = 3",
    "the order of the journal": "UPDATE OR REPLACE journal SET seq = 1",
}


@on_sqlite
@pytest.mark.parametrize("statement", REPLACES.values(), ids=REPLACES)
def test_nothing_is_replaced(bench: Bench, shell: Shell, statement: str) -> None:
    job_id = bench.succeeded()
    before = everything(bench, job_id)

    refused(shell, statement)

    assert everything(bench, job_id) == before
    bench.assert_sound()


def everything(bench: Bench, job_id: str) -> tuple[object, ...]:
    store = bench.store
    known = (store.executions(job_id), store.steps(job_id), bench.journal(job_id), dict(store.definitions()))
    return (bench.job(job_id), store.request(job_id), *known)


@on_sqlite
def test_the_record_of_what_was_pruned_is_not_replaced(bench: Bench, shell: Shell) -> None:
    bench.succeeded()
    bench.store.prune(before=bench.clock() + 1, limit=9, actor=OPERATOR, dry_run=False)
    before = dict(bench.store.pruned_heads())

    refused(shell, "REPLACE INTO pruned SELECT job_id, flow, state, 1, 1, 'x', 1, 'me' FROM pruned")

    assert bench.store.pruned_heads() == before


# --- what only a server's shell can try: upserts, and emptying a table without asking its rows ---------------

UPSERTS = {
    "a job": "INSERT INTO jobs (job_id, flow, fingerprint, created_at, updated_at) SELECT job_id,"
    " flow, fingerprint, 1, 1"
    " FROM jobs ON CONFLICT (job_id) DO UPDATE SET state = 'pending'",
    "the answer": "INSERT INTO steps SELECT * FROM steps ON CONFLICT (job_id, position) DO UPDATE SET response = '{}'",
    "a request": "INSERT INTO requests SELECT * FROM requests ON CONFLICT (job_id) DO UPDATE SET request = '{}'",
    "a definition": "INSERT INTO definitions SELECT * FROM definitions ON CONFLICT (fingerprint) DO"
    " UPDATE SET definition = ''",
    "the journal": "INSERT INTO journal SELECT * FROM journal ON CONFLICT (job_id, seq) DO UPDATE"
    " SET reason = 'forged'",
}
TABLES = ["jobs", "requests", "executions", "steps", "children", "journal", "definitions", "pruned"]


@on_postgres
@pytest.mark.parametrize("statement", UPSERTS.values(), ids=UPSERTS)
def test_nothing_is_changed_by_an_upsert(bench: Bench, shell: Shell, statement: str) -> None:
    job_id = bench.succeeded()
    before = everything(bench, job_id)

    refused(shell, statement)

    assert everything(bench, job_id) == before
    bench.assert_sound()


@on_postgres
@pytest.mark.parametrize("table", TABLES)
def test_nothing_is_truncated(bench: Bench, shell: Shell, table: str) -> None:
    job_id = bench.succeeded()
    before = everything(bench, job_id)

    refused(shell, f"TRUNCATE {table} CASCADE")

    assert everything(bench, job_id) == before


@on_postgres
def test_a_trigger_that_somebody_switched_off_is_found(bench: Bench, shell: Shell) -> None:
    shell.execute("ALTER TABLE journal DISABLE TRIGGER journal_is_append_only")

    [finding] = bench.store.integrity(deep=False)
    assert (finding.code, finding.subject) == ("rule-changed", "schema trigger journal_is_append_only of journal")


@on_sqlite
def test_an_update_or_replace_does_not_remove_another_job_with_the_same_key(bench: Bench, shell: Shell) -> None:
    """The conflict clause of a statement reaches into the triggers that it fires."""
    failed = bench.ended(key="k")
    holder = bench.submit(key="k")

    refused(shell, f"UPDATE OR REPLACE executions SET disposition = 'retry' WHERE job_id = '{failed}'")

    assert bench.state(holder) is JobState.PENDING
    assert bench.state(failed) is JobState.FAILED


# --- what the triggers do not forbid, the check finds -------------------------------------------------------


def test_a_rule_that_somebody_dropped_is_found(bench: Bench, backend: Backend, shell: Shell) -> None:
    shell.execute("DROP TRIGGER journal_is_append_only" + (" ON journal" if backend.name == "postgres" else ""))
    shell.execute("DROP INDEX executions_one_commit")

    found = {
        (finding.code, finding.subject.removesuffix(" of journal").split()[-1])
        for finding in bench.store.integrity(deep=False)
    }
    assert found == {("rule-missing", "journal_is_append_only"), ("rule-missing", "executions_one_commit")}


def test_a_rule_that_somebody_weakened_is_found(bench: Bench, backend: Backend, shell: Shell) -> None:
    shell.execute("DROP INDEX executions_one_commit")
    in_schema = f"{backend.schema}." if isinstance(backend, PostgresBackend) else ""
    shell.execute(f"CREATE INDEX executions_one_commit ON {in_schema}executions (job_id)")

    [finding] = bench.store.integrity(deep=False)
    assert (finding.code, finding.subject.split()[-1]) == ("rule-changed", "executions_one_commit")


def test_an_edit_behind_the_rules_is_found(bench: Bench, backend: Backend, shell: Shell) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim))
    put_back = backend.without_triggers(shell)
    shell.execute("UPDATE journal SET reason = 'nothing happened' WHERE seq = 2")
    shell.execute("UPDATE jobs SET state = 'succeeded'")
    put_back()

    codes = {finding.code for finding in (*bench.store.integrity(deep=False), *bench.findings())}
    assert codes == {"projection-mismatch", "journal-broken", "journal-disagrees"}
