"""Do a job's rows agree with its journal and with each other? Each function reports; none stops at the first fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.core.facts import PRUNED_STATE, FactRows, Finding, JobFacts, Link, StepFacts, error, warning
from holdfast.core.hash_chain import (
    KEY_FOR_EVER,
    TERMS,
    Account,
    Evidence,
    account_of,
    chain_faults,
    count_in,
    seal_of,
    steps_evidence,
)
from holdfast.core.progress import impossible_signs
from holdfast.core.records import Ending, ExecutionRecord, JobRecord, JournalEntry, encoded_record, storable
from holdfast.core.retry import PARK_AFTER
from holdfast.core.states import (
    COMMITTED_STATUSES,
    LIVE_STATUSES,
    STATE_OF_DISPOSITION,
    TERMINAL_EXECUTION_STATUSES,
    UNFINISHED_STATES,
    ExecutionOutcome,
    ExecutionStatus,
    JobState,
    project,
)
from holdfast.core.step import CLEANUP_POSITION

LONGEST_LEASE_MS = 86_400_000
"""No worker asks for a lease of more than a day."""
CLOCK_SLACK_MS = 60_000

_ending = msgspec.json.Decoder(Ending)


def check_agreement(facts: JobFacts, now: int) -> Iterator[Finding]:
    """Request, settings, counts, steps, waits and children are what the journal says."""
    rows, journal = facts.rows, facts.journal
    if rows is None:
        return
    subject = f"job {facts.job.job_id}"
    yield from _references(subject, facts.job, rows)
    yield from _wait(subject, facts.job, rows)
    yield from _leases(subject, facts.executions, now)
    yield from _signs_of_life(subject, facts, rows, now)
    if not journal:
        return
    account = account_of(journal)
    yield from _terms(subject, facts, rows, account, now)
    yield from _counts(subject, facts.job, account)
    yield from _requests_of_operators(subject, facts.job, account)
    yield from _wait_as_journaled(subject, facts.job, rows, account)
    yield from _due(subject, facts.job, now)
    yield from _times(subject, facts, journal)
    for execution in facts.executions:
        yield from _execution(subject, facts.job, execution, account)
    if rows.steps is not None:
        yield from _steps(subject, facts, rows.steps, rows, account)
    yield from _children(subject, facts.job, rows, account)


def _references(subject: str, job: JobRecord, rows: FactRows) -> Iterator[Finding]:
    if rows.pruned:
        yield error("pruned-but-there", subject, "is on record as pruned, and is there all the same")
    if not rows.has_request:
        yield error("orphan-rows", subject, "has lost its request")
    if not rows.has_queue:
        yield error("queue-missing", f"queue {job.queue!r}", "has jobs, but no row: they never start")
    if not rows.has_definition:
        yield error("definition-missing", subject, f"is pinned to definition {job.fingerprint}, which is not there")
    elif rows.definition is not None and rows.definition.flow != job.flow:
        yield error("definition-missing", subject, f"is pinned to a definition of flow {rows.definition.flow}")


def _terms(subject: str, facts: JobFacts, rows: FactRows, account: Account, now: int) -> Iterator[Finding]:
    assert facts.journal
    job, first = facts.job, facts.journal[0].at
    if job.created_at != first:
        yield error("terms-changed", subject, f"created_at is {job.created_at}, but it was submitted at {first}")
    terms = account.terms
    if terms is None:
        return
    if rows.has_request and rows.request is not None and rows.request != terms.request:
        yield error("request-changed", subject, "its request is not the one it was submitted with")
    if (terms.key_until == KEY_FOR_EVER or terms.key_until > now) and rows.key_holder != job.job_id:
        yield from _key_of_another(subject, rows, terms)
    for name in TERMS:
        is_now, was = getattr(job, name), getattr(terms, name)
        if is_now != was:
            yield error("terms-changed", subject, f"{name} is {is_now!r}, but it was submitted with {was!r}")
    if job.fingerprint != account.definition:
        yield error(
            "definition-changed", subject, f"is pinned to {job.fingerprint}, but the journal says {account.definition}"
        )
    if job.not_before != account.not_before and not (job.not_before == 0 and account.cancels):
        yield error(
            "terms-changed", subject, f"not_before is {job.not_before}, but the journal says {account.not_before}"
        )


def _key_of_another(subject: str, rows: FactRows, terms: Evidence) -> Iterator[Finding]:
    said = f"its key {terms.key!r} stands for {rows.key_holder or 'no job'}, not for it"
    if terms.key_until == KEY_FOR_EVER:
        yield error("key-missing", subject, said)
    elif rows.key_holder is None:
        said += "; unless the clock was set back after the key had lapsed, somebody has removed it"
        yield warning("key-missing", subject, said)
    elif rows.key_taken_at < terms.key_until:
        yield error("key-missing", subject, said)


def _counts(subject: str, job: JobRecord, account: Account) -> Iterator[Finding]:
    for name in ("failures", "crashes"):
        count, forgiven = getattr(job, name), getattr(job, f"{name}_forgiven")
        if count != getattr(account, name):
            yield error("count-wrong", subject, f"{name} is {count}, the journal has {getattr(account, name)}")
        if account.terms is not None:
            if forgiven != getattr(account, f"{name}_forgiven"):
                said = getattr(account, f"{name}_forgiven")
                yield error("count-wrong", subject, f"{name}_forgiven is {forgiven}, the journal has {said}")
        elif not 0 <= forgiven <= count:
            yield error("count-wrong", subject, f"{name}_forgiven is {forgiven} of {count}")


def _requests_of_operators(subject: str, job: JobRecord, account: Account) -> Iterator[Finding]:
    wanted = None if job.cancel_reason is None else storable(job.cancel_reason)
    if wanted is not None and wanted not in account.cancels:
        yield error("cancel-unexplained", subject, f"is to be cancelled ({wanted}), and nobody has asked for it")
    if wanted is None and account.cancelled is not None and job.state in UNFINISHED_STATES:
        yield error("cancel-unexplained", subject, f"was to be cancelled ({account.cancelled}), and is no longer")
    if job.ending is not None:
        stored: Ending | None = None
        try:
            stored = _ending.decode(job.ending)
        except msgspec.MsgspecError as fault:
            yield error("unreadable-row", subject, f"its planned ending cannot be read: {fault}")
        if not account.endings:
            yield error("ending-unexplained", subject, "is on its way down, and the journal knows of no reason")
        elif stored is not None and account.planned is not None and stored != account.planned:
            yield error("ending-unexplained", subject, "is on its way down to another end than the journal says")
    elif account.ending:
        yield error("ending-unexplained", subject, "was on its way down, and is no longer")


def _wait(subject: str, job: JobRecord, rows: FactRows) -> Iterator[Finding]:
    if job.state is not JobState.PENDING:
        if job.hold != "none" or job.waits_for is not None:
            yield error("wait-wrong", subject, f"is {job.state} and held ({job.hold})")
        return
    if job.hold == "after" and job.waits_for != job.run_after:
        said = f"runs after {job.run_after}" if job.run_after else "runs after no other job"
        yield error("wait-wrong", subject, f"waits for {job.waits_for}, but {said}")
    predecessor = rows.others.get(job.run_after or "")
    if (
        predecessor is not None
        and predecessor.state not in (JobState.SUCCEEDED, PRUNED_STATE)
        and job.hold != "after"
        and job.cancel_reason is None
    ):
        yield error("wait-wrong", subject, f"does not wait for {job.run_after}, after which it is to run")
    if job.waits_for is None:
        return
    if job.waits_for == job.job_id:
        yield error("wait-cycle", subject, "waits for itself")
        return
    target = rows.others.get(job.waits_for)
    if target is None or target.state == PRUNED_STATE:
        yield error("wait-for-nobody", subject, f"waits for job {job.waits_for}, which does not exist")
    elif target.state == JobState.SUCCEEDED:
        yield error("wait-over", subject, f"waits for job {job.waits_for}, which has succeeded")
    elif target.state not in UNFINISHED_STATES:
        # Dependents of a failed job end some at a time.
        yield warning("wait-over", subject, f"waits for job {job.waits_for}, which is {target.state}")


def _wait_as_journaled(subject: str, job: JobRecord, rows: FactRows, account: Account) -> Iterator[Finding]:
    if account.terms is None or job.state is not JobState.PENDING:
        return
    if job.hold == "child" and job.waits_for != account.wait_for:
        said = f"waits for {account.wait_for}" if account.wait_for else "waits for nobody"
        yield error("wait-wrong", subject, f"waits for {job.waits_for}, but by the journal it {said}")
    # One that is to be cancelled waits for nothing, whatever it asked for when it heard of that too late.
    if job.hold in ("none", "until") and account.wait_for is not None and job.cancel_reason is None:
        target = rows.others.get(account.wait_for)
        if target is not None and target.state in UNFINISHED_STATES:
            yield from _wait_given_up(subject, rows, account)


def _wait_given_up(subject: str, rows: FactRows, account: Account) -> Iterator[Finding]:
    said = f"does not wait for {account.wait_for}, as by the journal it does"
    if not was_let_go_on(rows, account):
        yield error("wait-wrong", subject, said)
    elif rows.brought_back[account.wait_for or ""] + CLOCK_SLACK_MS < account.wait_since:
        said += "; unless the clock was set back before that one was brought back, somebody has written it"
        yield warning("wait-wrong", subject, said)


def was_let_go_on(rows: FactRows, account: Account) -> bool:
    """Has an operator brought back the job that it waited for? Then that one had ended, and the wait with it."""
    return account.wait_for in rows.brought_back


def _due(subject: str, job: JobRecord, now: int) -> Iterator[Finding]:
    ahead = job.not_before - now
    if job.state is JobState.PENDING and job.hold == "none" and ahead > CLOCK_SLACK_MS:
        yield warning(
            "wait-wrong",
            subject,
            f"may start now, although its time comes in {ahead // 1000} s; "
            "unless the clock was set back, somebody has written it",
        )


def _leases(subject: str, executions: tuple[ExecutionRecord, ...], now: int) -> Iterator[Finding]:
    for execution in executions:
        ahead = execution.lease_expires_at - now
        if execution.status in LIVE_STATUSES and ahead > LONGEST_LEASE_MS:
            yield warning(
                "lease-too-long",
                subject,
                f"its lease holds for {ahead // 3_600_000} hours more: no worker asks for that; "
                "unless the clock was set back, somebody has written it",
            )


def _signs_of_life(subject: str, facts: JobFacts, rows: FactRows, now: int) -> Iterator[Finding]:
    """By these a stall is judged: one in the future would hide it until then."""
    steps = None if rows.definition is None else len(rows.definition.steps)
    before = {execution.attempt: execution for execution in facts.executions}
    for execution in (one for one in facts.executions if one.status in LIVE_STATUSES):
        which = f"execution {execution.exec_id}"
        limits = {"progressed_at": CLOCK_SLACK_MS, "retry_at": round(PARK_AFTER * 1000) + CLOCK_SLACK_MS}
        for name, most in limits.items():
            ahead = (getattr(execution, name) or 0) - now
            if ahead > most:
                yield warning(
                    "progress-ahead",
                    subject,
                    f"{which}: {name} is {ahead // 1000} s ahead; "
                    "unless the clock was set back, somebody has written it",
                )
        for said in impossible_signs(execution, before.get(execution.attempt - 1), steps):
            yield error("execution-changed", subject, f"{which}: {said}")


def _times(subject: str, facts: JobFacts, journal: Sequence[JournalEntry]) -> Iterator[Finding]:
    job = facts.job
    earliest, latest = changed_bounds(facts, job.state, journal)
    if job.updated_at > latest + CLOCK_SLACK_MS:
        yield error("time-wrong", subject, f"updated_at is {job.updated_at}, after the last that happened to it")
    if job.updated_at < earliest:
        yield error("time-wrong", subject, f"updated_at is {job.updated_at}, before the last that happened to it")


def changed_bounds(facts: JobFacts, state: JobState, journal: Sequence[JournalEntry]) -> tuple[int, int]:
    """Between which times a job in this state has changed last.

    The clock may have been set back between any two entries, so that a later one has an earlier time.
    """
    times = [entry.at for entry in journal]
    known = [time for e in facts.executions for time in (e.started_at, e.progressed_at, e.finished_at) if time]
    ended = facts.executions[-1].finished_at if facts.executions and state not in UNFINISHED_STATES else None
    if ended is None:
        return min(facts.job.created_at, *times), max(times + known)
    ends = [at for at, entry in enumerate(journal) if entry.exec_to in TERMINAL_EXECUTION_STATUSES]
    return min(ended, *times[max(ends, default=0) :]), max(times + known)


def _execution(subject: str, job: JobRecord, execution: ExecutionRecord, account: Account) -> Iterator[Finding]:
    which = f"execution {execution.exec_id}"
    claim = account.claims.get(execution.exec_id)
    if claim is None:
        return  # check_journal says so
    end, code = account.ends.get(execution.exec_id, (None, None))
    commit = account.commits.get(execution.exec_id)
    queue = account.queues.get(execution.exec_id)
    expected: dict[str, object] = {
        "queue": job.queue if queue is None else queue,
        "lease_owner": claim.actor,
        "started_at": claim.at,
    }
    if end is not None:
        expected["finished_at"] = max(end.at, execution.progressed_at)
        if execution.disposition is not None:
            # No transition leaves the disposition other than the journal's last word on the job.
            said = account.dispositions[execution.exec_id]
            if STATE_OF_DISPOSITION[execution.disposition] != said:
                yield error("execution-changed", subject, f"{which} means {execution.disposition}, journal says {said}")
            # An end without an error of its own is journaled under its code, and leaves the error of the last try.
            if end.reason != code:
                expected["error"] = end.reason
                expected["failure"] = encoded_record(account.failures_of[execution.exec_id])
    if execution.status in COMMITTED_STATUSES and commit is not None:
        code = commit.reason
    if code is not None:
        expected["code"] = code
    for name, value in expected.items():
        if getattr(execution, name) != value:
            is_now = getattr(execution, name)
            yield error("execution-changed", subject, f"{which}: {name} is {is_now!r}, the journal says {value!r}")
    if execution.position < CLEANUP_POSITION or execution.tries < 0:
        yield error("execution-changed", subject, f"{which} is at a step that cannot be: {execution.position}")


def _steps(
    subject: str, facts: JobFacts, steps: tuple[StepFacts, ...], rows: FactRows, account: Account
) -> Iterator[Finding]:
    known = {execution.exec_id for execution in facts.executions}
    names = rows.definition.steps if rows.definition is not None else None
    for expected, one in enumerate(steps):
        which = f"step {one.step!r} at position {one.position}"
        if one.position != expected:
            yield error("step-missing", subject, f"{which} comes where {expected} is expected: finished steps are gone")
            break
        if one.exec_id not in known:
            yield error("step-forged", subject, f"{which} was finished by {one.exec_id}, no execution of the job")
        if names is not None and (one.position >= len(names) or names[one.position] != one.step):
            yield error("step-forged", subject, f"{which} is not in the definition that the job is pinned to")
        yield from _seal(subject, which, one, account)
    if account.steps is None:
        return
    count = count_in(account.steps)
    if len(steps) < count:
        yield error("step-missing", subject, f"{len(steps)} finished steps are there, the journal knows of {count}")
    elif account.steps != steps_evidence([one.seal for one in steps[:count]]):
        yield error("step-changed", subject, f"the first {count} finished steps are not those that the journal knows")
    for one in steps[count:]:
        if one.exec_id in known and one.exec_id not in account.adding:
            yield error("step-forged", subject, f"step {one.step!r} was added after its execution had ended")


def _seal(subject: str, which: str, one: StepFacts, account: Account) -> Iterator[Finding]:
    if one.seal:
        content = (one.job_id, one.position, one.step, one.exec_id, one.tries, one.started_at, one.finished_at)
        if one.seal != seal_of(*content, one.digest):
            yield error("step-changed", subject, f"{which} was changed after it was written")
        return
    if one.exec_id in account.sealing:
        yield error("step-forged", subject, f"{which} has no seal: no worker has written it")
    try:
        msgspec.json.decode(one.unsealed or "")
    except msgspec.MsgspecError as fault:
        yield error("step-changed", subject, f"the response of {which} is not JSON: {fault}")


def _children(subject: str, job: JobRecord, rows: FactRows, account: Account) -> Iterator[Finding]:
    for link in rows.children or ():
        yield from _child(subject, job, link, rows, account)
    if rows.parents is None or job.parent is None or _is_gone(rows, job.parent):
        return
    if account.terms is None:
        is_linked = any(link.parent == job.parent for link in rows.parents)
    elif account.terms.child is None:
        is_linked = True  # it has a parent, and no name among its children
    else:
        wanted = (job.parent, account.terms.child, account.terms.round)
        is_linked = any((link.parent, link.name, link.round) == wanted for link in rows.parents)
    if not is_linked:
        yield error("child-wrong", subject, f"is not among the children of its parent {job.parent}")


def _child(subject: str, job: JobRecord, link: Link, rows: FactRows, account: Account) -> Iterator[Finding]:
    child = rows.others.get(link.job_id)
    if child is None:
        yield error("child-wrong", subject, f"its child {link.name!r} is job {link.job_id}, which does not exist")
    elif child.parent != job.job_id and (link.name, link.round, link.job_id) not in account.adopted:
        if account.terms is not None:
            yield error("child-wrong", subject, f"job {link.job_id} is not its child {link.name!r}")
        elif not job.attempt:
            yield error("child-wrong", subject, f"has a child {link.name!r}, but has never run")


def _is_gone(rows: FactRows, job_id: str) -> bool:
    other = rows.others.get(job_id)
    return other is None or other.state == PRUNED_STATE


# --- What must be true, as pure functions over a job's facts. Each check reports; none stops at the first fault ---


def check_projection(facts: JobFacts, now: int) -> Iterator[Finding]:
    """A job is in exactly one state: the one its executions say."""
    try:
        projected = project(ExecutionOutcome(e.attempt, e.status, e.disposition) for e in facts.executions)
    except ValueError as fault:
        yield _error("execution-without-disposition", facts, str(fault))
        return
    if projected != facts.job.state:
        yield _error("projection-mismatch", facts, f"stored as {facts.job.state}, but its executions say {projected}")


def check_single_commit(facts: JobFacts, now: int) -> Iterator[Finding]:
    """INV_001: at most one execution of a job is committed or done."""
    committed = [e for e in facts.executions if e.status in COMMITTED_STATUSES]
    if len(committed) > 1:
        yield _error("commit-twice", facts, f"{len(committed)} executions are committed or done")


def check_single_lease(facts: JobFacts, now: int) -> Iterator[Finding]:
    """At most one execution of a job is live, and none once the job has committed."""
    live = [e for e in facts.executions if e.status in LIVE_STATUSES]
    if len(live) > 1:
        yield _error("lease-twice", facts, f"{len(live)} executions hold a lease")
    if live and any(e.status in COMMITTED_STATUSES for e in facts.executions):
        yield _error("lease-after-commit", facts, "an execution holds a lease although the job has committed")


def check_running_has_lease(facts: JobFacts, now: int) -> Iterator[Finding]:
    """A running job has a live lease; one that has run out is recovery's to take."""
    if facts.job.state is not JobState.RUNNING:
        return
    under_way = [e for e in facts.executions if e.status in LIVE_STATUSES or e.status is ExecutionStatus.COMMITTED]
    if not under_way:
        yield _error("running-without-lease", facts, "running, but no execution is under way")
    elif all(e.lease_expires_at <= now for e in under_way):
        ago = (now - max(e.lease_expires_at for e in under_way)) // 1000
        yield _warning("lease-expired", facts, f"its lease ran out {ago} s ago and nobody has taken it over yet")


def check_attempts(facts: JobFacts, now: int) -> Iterator[Finding]:
    """Attempts only grow: numbered from 1 without gaps or repeats, and the job knows the last."""
    attempts = [e.attempt for e in facts.executions]
    if attempts != list(range(1, len(attempts) + 1)):
        yield _error("attempts-not-monotonic", facts, f"attempts are {attempts}")
    if facts.job.attempt != len(attempts):
        yield _error("attempt-count", facts, f"job says {facts.job.attempt} attempts, there are {len(attempts)}")
    if facts.job.attempt < 0 or facts.job.failures < 0 or facts.job.crashes < 0:
        yield _error("negative-count", facts, "attempts, failures or crashes are negative")


def check_succeeded_is_final(facts: JobFacts, now: int) -> Iterator[Finding]:
    """Nothing happens to a job after it has succeeded."""
    for execution in facts.executions:
        if execution.status is ExecutionStatus.DONE and execution.finished_at is not None:
            later = [e.attempt for e in facts.executions if e.attempt > execution.attempt]
            if later:
                yield _error("changed-after-success", facts, f"attempts {later} came after the one that succeeded")
            if facts.job.updated_at > execution.finished_at:
                yield _error("changed-after-success", facts, "the job was changed after it had succeeded")


def check_journal(facts: JobFacts, now: int) -> Iterator[Finding]:
    """INV_003: the journal is whole, unedited, and ends where the job is."""
    if facts.journal is None:
        return
    for fault in chain_faults(facts.journal):
        yield _error("journal-broken", facts, fault)
    if not facts.journal:
        yield _error("journal-missing", facts, "no journal entry at all")
        return
    if facts.journal[-1].job_to != facts.job.state:
        yield _error(
            "journal-disagrees", facts, f"stored as {facts.job.state}, journal ends at {facts.journal[-1].job_to}"
        )
    journaled: dict[str, str] = {}
    for entry in facts.journal:
        if entry.exec_id and entry.exec_to:
            journaled[entry.exec_id] = entry.exec_to
    for execution in facts.executions:
        said = journaled.get(execution.exec_id)
        if said != execution.status:
            yield _error(
                "journal-disagrees", facts, f"execution {execution.exec_id} is {execution.status}, journal says {said}"
            )


Check = Callable[[JobFacts, int], Iterator[Finding]]

CHECKS: Sequence[Check] = (
    check_projection,
    check_single_commit,
    check_single_lease,
    check_running_has_lease,
    check_attempts,
    check_succeeded_is_final,
    check_journal,
    check_agreement,
)


def check_job(facts: JobFacts, now: int) -> list[Finding]:
    """Every finding of every check about one job."""
    return [finding for check in CHECKS for finding in check(facts, now)]


def _error(code: str, facts: JobFacts, message: str) -> Finding:
    return error(code, f"job {facts.job.job_id}", message)


def _warning(code: str, facts: JobFacts, message: str) -> Finding:
    return warning(code, f"job {facts.job.job_id}", message)
