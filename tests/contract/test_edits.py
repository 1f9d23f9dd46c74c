"""Somebody edits the database past its rules: the rules refuse it, or the check finds it. Nothing stays unseen."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from holdfast.core.states import Disposition
from holdfast.guard import check
from tests.support.backends import Backend, PostgresBackend, Shell, is_refusal
from tests.support.bench import DEFINITION, Bench, commit, end, finish, finish_step, give_back, plan_ending, record_try

DAY = 86_400_000


def scene(bench: Bench) -> dict[str, str]:
    """One job in every situation, by the name of the situation."""
    jobs: dict[str, str] = {}
    claim = bench.running(key="k")
    bench.apply(finish_step(claim, response='{"n":1}'))
    bench.apply(commit(claim, position=1))
    bench.apply(finish(claim))
    jobs["ok"] = claim.job.job_id
    failing = bench.running()
    bench.apply(end(failing, error="no luck"))
    jobs["fail"] = failing.job.job_id
    jobs["quar"] = bench.ended(Disposition.QUARANTINED)
    claim = bench.running(failure_limit=5)
    bench.apply(finish_step(claim))
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), error="again", not_before=bench.clock() + DAY))
    jobs["retry"] = claim.job.job_id
    claim = bench.running()
    bench.apply(finish_step(claim), record_try(claim, position=1))
    jobs["hang"] = claim.job.job_id
    claim = bench.running()
    jobs["child"] = bench.submit(parent=claim.job.job_id, child_name="c", not_before=bench.clock() + DAY)
    bench.apply(give_back(claim, wait_for=jobs["child"]))
    jobs["parent"] = claim.job.job_id
    claim = bench.running()
    bench.apply(plan_ending(claim))
    jobs["ending"] = claim.job.job_id
    jobs["after"] = bench.submit(run_after=jobs["hang"])
    jobs["new"] = bench.submit(not_before=bench.clock() + DAY, queue="q", key="new", key_lasts_ms=None)
    return jobs


PRUNED = (
    "INSERT INTO pruned (job_id, flow, state, finished_at, entries, head, pruned_at, pruned_by)"
    " SELECT j.job_id, j.flow, j.state, j.updated_at, h.seq, h.hash, 1, 'x' FROM jobs j"
    " JOIN journal h ON h.job_id = j.job_id WHERE j.job_id = '{ok}' ORDER BY h.seq DESC LIMIT 1"
)
STEP = (
    "INSERT INTO steps (job_id, position, step, exec_id, tries, started_at, finished_at, response, seal)"
    " SELECT '{%s}', %d, '%s', exec_id, 1, 1, 1, '%s', '%s' FROM executions WHERE job_id = '{%s}'"
    " ORDER BY attempt DESC LIMIT 1"
)


def step(job: str, position: int, name: str, *, response: str = "{{}}", seal: str = "") -> str:
    """Forge a finished step."""
    return STEP % (job, position, name, response, seal, job)


BY_HAND: dict[str, str] = {
    "a commit mark": "UPDATE executions SET status = 'committed' WHERE job_id = '{hang}' AND status = 'in_progress'",
    "a commit mark under another code": (
        "UPDATE executions SET status = 'committed', code = 'forged' WHERE job_id = '{hang}' AND status = 'in_progress'"
    ),
    "an end": (
        "UPDATE executions SET status = 'aborted', disposition = 'retry', finished_at = progressed_at"
        " WHERE job_id = '{hang}' AND status = 'in_progress'"
    ),
    "another meaning of a failure": "UPDATE executions SET disposition = 'retry' WHERE job_id = '{fail}'",
    "a failure made final": "UPDATE executions SET disposition = 'quarantined' WHERE job_id = '{fail}'",
    "a quarantine lifted": "UPDATE executions SET disposition = 'retry' WHERE job_id = '{quar}'",
    "a step of a job that waits": step("retry", 1, "two"),
    "a step of a running job": step("hang", 1, "two"),
    "a step under a false seal": step("hang", 1, "two", seal="0" * 32),
    "a step far behind the last": step("hang", 7, "nine"),
    "a step that is not JSON": step("hang", 1, "two", response="garbage"),
    "finished steps removed": "DELETE FROM steps WHERE job_id = '{hang}'",
    "finished steps of a waiting job removed": "DELETE FROM steps WHERE job_id = '{retry}'",
    "a finished step changed": "UPDATE steps SET response = '{{\"forged\":1}}' WHERE job_id = '{hang}'",
    "a wait for a job that has succeeded": "UPDATE jobs SET hold = 'after', waits_for = '{ok}' WHERE job_id = '{new}'",
    "a wait for a job that has failed": "UPDATE jobs SET hold = 'child', waits_for = '{fail}' WHERE job_id = '{new}'",
    "a wait for itself": "UPDATE jobs SET hold = 'child', waits_for = '{new}' WHERE job_id = '{new}'",
    "a wait for nobody": "UPDATE jobs SET hold = 'child', waits_for = 'nobody' WHERE job_id = '{new}'",
    "a wait for another child": "UPDATE jobs SET waits_for = '{new}' WHERE job_id = '{parent}'",
    "two that wait for each other": (
        "UPDATE jobs SET hold = 'child', waits_for = '{after}' WHERE job_id = '{new}';"
        "UPDATE jobs SET hold = 'child', waits_for = '{new}' WHERE job_id = '{after}'"
    ),
    "the order taken away": "UPDATE jobs SET hold = 'none', waits_for = NULL WHERE job_id = '{after}'",
    "a parent that waits no longer": "UPDATE jobs SET hold = 'none', waits_for = NULL WHERE job_id = '{parent}'",
    "the time of a start": "UPDATE jobs SET not_before = 0 WHERE job_id = '{new}'",
    "a start at once": "UPDATE jobs SET hold = 'none', not_before = 0 WHERE job_id = '{new}'",
    "a start at once in spite of its time": "UPDATE jobs SET hold = 'none' WHERE job_id = '{new}'",
    "a job that is due and still held": "UPDATE jobs SET hold = 'until' WHERE job_id = '{after}'",
    "a cancellation": "UPDATE jobs SET cancel_reason = 'x' WHERE job_id = '{new}'",
    "an ending that is garbage": "UPDATE jobs SET ending = 'garbage' WHERE job_id = '{new}'",
    "an ending that is taken back": "UPDATE jobs SET ending = NULL WHERE job_id = '{ending}'",
    "an ending that is another": (
        'UPDATE jobs SET ending = \'{{"disposition":"quarantined","code":"abort","error":"x"}}\''
        " WHERE job_id = '{ending}'"
    ),
    "a queue that does not exist": "UPDATE jobs SET queue = 'nowhere' WHERE job_id = '{new}'",
    "queues removed": "DELETE FROM queues",
    "a definition that does not exist": "UPDATE jobs SET fingerprint = '0000' WHERE job_id = '{new}'",
    "a definition that is garbage": "INSERT INTO definitions VALUES ('feed', 'demo', 'garbage', 1)",
    "a definition of another name": f"INSERT INTO definitions VALUES ('feed', 'demo', '{DEFINITION}', 1)".replace(
        "{", "{{"
    ).replace("}", "}}"),
    "failures added": "UPDATE jobs SET failures = failures + 100 WHERE job_id = '{new}'",
    "crashes added": "UPDATE jobs SET crashes = crashes + 100 WHERE job_id = '{new}'",
    "failures forgiven": "UPDATE jobs SET failures_forgiven = 1 WHERE job_id = '{retry}'",
    "more forgiven than was": "UPDATE jobs SET crashes_forgiven = -1000 WHERE job_id = '{new}'",
    "attempts added": "UPDATE jobs SET attempt = attempt + 3 WHERE job_id = '{new}'",
    "a lease until the year 2286": (
        "UPDATE executions SET lease_expires_at = 9999999999999 WHERE job_id = '{hang}' AND status = 'in_progress'"
    ),
    "an execution of nobody": (
        "INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at,"
        " started_at) SELECT 'zz', job_id, attempt + 1, queue, 'leased', 'nobody', 9999999999999, 1, 1"
        " FROM jobs WHERE job_id = '{new}'"
    ),
    "progress in the year 2286": "UPDATE executions SET progressed_at = 9999999999999 WHERE status = 'in_progress'",
    "a next try in the year 2286": "UPDATE executions SET retry_at = 9999999999999 WHERE status = 'in_progress'",
    "a step that no flow has": "UPDATE executions SET position = 99 WHERE status = 'in_progress'",
    "tries that no policy allows": "UPDATE executions SET tries = 9999999999 WHERE status = 'in_progress'",
    "tries below zero": "UPDATE executions SET tries = -1 WHERE status = 'in_progress'",
    "progress that is no JSON": "UPDATE executions SET progress = 'half' WHERE status = 'in_progress'",
    "progress that is no object": "UPDATE executions SET progress = '[1]' WHERE status = 'in_progress'",
    "an interruption that was none": "UPDATE executions SET interrupted = '1' WHERE status = 'in_progress'",
    "an interruption that is none": "UPDATE executions SET interrupted = '2' WHERE status = 'in_progress'",
    "children removed": "DELETE FROM children WHERE parent = '{parent}'",
    "a child that is none": "INSERT INTO children VALUES ('{new}', 'kid', 0, '{ok}', 0)",
    "an end long ago": "UPDATE jobs SET updated_at = 1 WHERE job_id = '{fail}'",
    "an end in the future": "UPDATE jobs SET updated_at = 9999999999999 WHERE job_id = '{fail}'",
    "a journal entry with a wrong hash": (
        "INSERT INTO journal SELECT job_id, seq + 1, at, actor, exec_id, job_to, job_to, exec_to, exec_to, step,"
        " 'forged', metadata, hash, 'deadbeef' FROM journal WHERE job_id = '{fail}' ORDER BY seq DESC LIMIT 1"
    ),
    "a request replaced, through pruned": (
        PRUNED + ";DELETE FROM requests WHERE job_id = '{ok}';INSERT INTO requests VALUES ('{ok}', '{{}}')"
    ),
    "steps removed, through pruned": PRUNED + ";DELETE FROM steps WHERE job_id = '{ok}'",
    "the journal removed, through pruned": PRUNED + ";DELETE FROM journal WHERE job_id = '{ok}'",
    "a job on record as pruned": PRUNED,
    "a worker that is none": "INSERT INTO workers VALUES ('x', 'garbage', 1, 1)",
    "a key given up": "DELETE FROM keys",
    "a key for another job": "UPDATE keys SET job_id = '{ok}'",
    "an exception to the rules": "INSERT INTO permits VALUES ('{hang}', 'forget-steps')",
    "a queue paused by halves": "UPDATE queues SET paused_by = NULL WHERE name = 'q'",
    "a queue paused since another time": "UPDATE queues SET paused_at = 1 WHERE name = 'q'",
    "a queue resumed": ("UPDATE queues SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE name = 'q'"),
    "another limit of a queue": "UPDATE queues SET max_running = 1 WHERE name = 'q'",
    "a history of a queue that was edited": "UPDATE queue_events SET actor = 'x'",
    "a change taken out of the order": "DELETE FROM changes WHERE job_id = '{fail}'",
    "another change in its place": "UPDATE changes SET job_id = '{ok}' WHERE job_id = '{fail}'",
    "a cancellation of children that nobody asked for": (
        "INSERT INTO cancellations VALUES ('{parent}', NULL, 'zzz', 'x', 'x', '{{}}', 1)"
    ),
}

BEHIND: dict[str, tuple[str, str]] = {
    "a state": ("UPDATE jobs SET state = 'succeeded' WHERE job_id = '{new}'", "projection-mismatch"),
    "a state that does not exist": ("UPDATE jobs SET state = 'gone' WHERE job_id = '{new}'", "invalid-state"),
    "a status that does not exist": (
        "UPDATE executions SET status = 'gone' WHERE job_id = '{hang}'",
        "invalid-status",
    ),
    "attempts below zero": ("UPDATE jobs SET attempt = -1 WHERE job_id = '{new}'", "negative-count"),
    "failures below zero": ("UPDATE jobs SET failures = -1 WHERE job_id = '{new}'", "negative-count"),
    "the owner of an execution": (
        "UPDATE executions SET lease_owner = 'me' WHERE job_id = '{ok}'",
        "execution-changed",
    ),
    "the error of an execution": (
        "UPDATE executions SET error = 'other' WHERE job_id = '{fail}'",
        "execution-changed",
    ),
    "the error of an execution as data": (
        'UPDATE executions SET failure = \'{{"type":"Other","message":""}}\' WHERE job_id = \'{fail}\'',
        "execution-changed",
    ),
    "the code of an execution": ("UPDATE executions SET code = 'x' WHERE job_id = '{fail}'", "execution-changed"),
    "the end of an execution": (
        "UPDATE executions SET finished_at = 1 WHERE job_id = '{fail}'",
        "execution-changed",
    ),
    "the attempt of an execution": (
        "UPDATE executions SET attempt = 7 WHERE job_id = '{ok}'",
        "attempts-not-monotonic",
    ),
    "a second commit": (
        "UPDATE executions SET status = 'done', disposition = NULL WHERE job_id = '{fail}'",
        "journal-disagrees",
    ),
    "an execution removed": ("DELETE FROM executions WHERE job_id = '{fail}'", "attempt-count"),
    "the response of a succeeded job": (
        "UPDATE steps SET response = '{{\"forged\":1}}' WHERE job_id = '{ok}'",
        "step-changed",
    ),
    "the tries of a finished step": ("UPDATE steps SET tries = 7 WHERE job_id = '{ok}'", "step-changed"),
    "a step of a succeeded job removed": (
        "DELETE FROM steps WHERE job_id = '{ok}' AND position = 1",
        "step-missing",
    ),
    "a request": ("UPDATE requests SET request = '{{}}' WHERE job_id = '{new}'", "request-changed"),
    "a request of a succeeded job": ("UPDATE requests SET request = '{{}}' WHERE job_id = '{ok}'", "request-changed"),
    "a request removed": ("DELETE FROM requests WHERE job_id = '{new}'", "orphan-rows"),
    "the priority of a succeeded job": ("UPDATE jobs SET priority = 5 WHERE job_id = '{ok}'", "terms-changed"),
    "the key of a job": ("UPDATE jobs SET key = 'other' WHERE job_id = '{ok}'", "terms-changed"),
    "the parent of a job": ("UPDATE jobs SET parent = '{ok}' WHERE job_id = '{new}'", "terms-changed"),
    "the predecessor of a job": ("UPDATE jobs SET run_after = '{ok}' WHERE job_id = '{after}'", "terms-changed"),
    "the time of a submission": ("UPDATE jobs SET created_at = 1 WHERE job_id = '{ok}'", "terms-changed"),
    "limits": ("UPDATE jobs SET crash_limit = 1000, stall_ms = 1 WHERE job_id = '{hang}'", "terms-changed"),
    "a journal entry": ("UPDATE journal SET actor = 'me' WHERE job_id = '{ok}'", "journal-broken"),
    "the metadata of a journal entry": (
        "UPDATE journal SET metadata = '{{}}' WHERE job_id = '{ok}' AND seq = 1",
        "journal-broken",
    ),
    "a journal entry removed": ("DELETE FROM journal WHERE job_id = '{ok}' AND seq = 2", "journal-broken"),
    "the last journal entry removed": (
        "DELETE FROM journal WHERE job_id = '{fail}' AND seq = (SELECT max(seq) FROM journal WHERE job_id = '{fail}')",
        "journal-disagrees",
    ),
    "a journal removed": ("DELETE FROM journal WHERE job_id = '{ok}'", "journal-missing"),
    "a job removed": ("DELETE FROM jobs WHERE job_id = '{fail}'", "orphan-rows"),
    "a definition": ("UPDATE definitions SET definition = 'x'", "definition-damaged"),
    "a child turned away": ("DELETE FROM children WHERE parent = '{parent}'", "child-wrong"),
    "a key for another job": ("UPDATE keys SET job_id = '{fail}'", "orphan-rows"),
    "a key given up": ("DELETE FROM keys", "key-missing"),
    "another ending": (
        "UPDATE jobs SET ending = replace(ending, 'failed', 'quarantined') WHERE job_id = '{ending}'",
        "ending-unexplained",
    ),
}


def statements(text: str, jobs: dict[str, str]) -> list[str]:
    return [one.format(**jobs) for one in text.split(";")]


def without_checks(backend: Backend, shell: Shell) -> None:
    """Take the CHECKs away: on SQLite for this connection, on PostgreSQL for ever, which is found in addition."""
    if not isinstance(backend, PostgresBackend):
        shell.execute("PRAGMA ignore_check_constraints = ON")
        return
    checks = shell.execute(
        "SELECT conrelid::regclass::text, conname FROM pg_constraint"
        f" WHERE contype = 'c' AND connamespace = '{backend.schema}'::regnamespace"
    ).fetchall()
    for table, name in checks:
        shell.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")


def test_the_scene_is_sound(bench: Bench) -> None:
    scene(bench)
    bench.store.pause_queue("q", actor="me", reason="lunch")
    bench.store.set_queue("q", max_running=7, actor="me", reason="room")

    assert check(bench.store, deep=True) == []


@pytest.mark.parametrize("edit", BY_HAND)
def test_an_edit_by_hand_is_refused_or_found(bench: Bench, backend: Backend, edit: str) -> None:
    jobs = scene(bench)
    bench.store.pause_queue("q", actor="me", reason="lunch")
    bench.store.set_queue("q", max_running=7, actor="me", reason="room")
    is_refused = False
    with backend.shell() as shell:
        try:
            for statement in statements(BY_HAND[edit], jobs):
                shell.execute(statement)
        except (sqlite3.Error, psycopg.Error) as error:
            is_refused = is_refusal(error)
            if not is_refused:
                raise

    assert is_refused or check(bench.store, deep=False) != []


@pytest.mark.parametrize("edit", BEHIND)
def test_an_edit_behind_the_rules_is_found_by_its_name(bench: Bench, backend: Backend, edit: str) -> None:
    jobs = scene(bench)
    text, code = BEHIND[edit]
    with backend.shell() as shell:
        without_checks(backend, shell)
        put_back = backend.without_triggers(shell)
        for statement in statements(text, jobs):
            shell.execute(statement)
        put_back()

    assert code in {finding.code for finding in check(bench.store, deep=False)}


def test_an_interruption_that_was_taken_away_is_found(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    bench.crash()
    again = bench.take()
    before = check(bench.store, deep=False)
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        shell.execute(f"UPDATE executions SET interrupted = '0' WHERE exec_id = '{again.exec_id}'")
        put_back()

    assert (again.job.job_id, again.interrupted, before) == (claim.job.job_id, True, [])
    assert [finding.code for finding in check(bench.store, deep=False)] == ["execution-changed"]


def test_an_interruption_is_told_again_until_a_step_is_finished(bench: Bench) -> None:
    bench.running()
    bench.crash()
    for _ in range(2):
        claim = bench.take()
        bench.apply(give_back(claim))
        assert (claim.interrupted, check(bench.store, deep=False)) == (True, [])
    claim = bench.take()
    bench.apply(finish_step(claim), give_back(claim))
    last = bench.take()

    assert (claim.interrupted, last.interrupted) == (True, False)
    assert check(bench.store, deep=False) == []
