"""Checks everything, then reports everything."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, assert_never

from holdfast.core.facts import Finding, JobFacts, Severity
from holdfast.core.invariants import check_job
from holdfast.core.progress import StallVerdict, stall_limit, stall_verdict
from holdfast.core.records import ExecutionRecord
from holdfast.core.repair import RepairAction, RepairKind, plan_repairs
from holdfast.core.states import LIVE_STATUSES
from holdfast.core.values import label_of, time_of_ulid, ulid_from
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.store.commands import FlowChange
from holdfast.store.protocol import Store

PAGE = 1000


def check(store: Store, *, deep: bool, progress: Callable[[int], None] = lambda _jobs: None) -> list[Finding]:
    """Every finding about the database and every job in it; `deep` reads every page as well.

    `progress` is told now and then how many jobs have been looked at.
    """
    findings = list(store.integrity(deep=deep))
    after: str | None = ""
    looked_at = 0
    while after is not None:
        page = store.fact_page(after=after, limit=PAGE)
        findings += findings_of(store, page.facts)
        looked_at += len(page.facts)
        progress(looked_at)
        after = page.last
    return without_repeats(findings)


def findings_of(store: Store, facts: Iterable[JobFacts | Finding]) -> list[Finding]:
    """What is wrong with these jobs."""
    now = store.now()
    return [finding for one in facts for finding in ([one] if isinstance(one, Finding) else check_job(one, now))]


def without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Each of them once, in their order."""
    return list({(finding.code, finding.subject, finding.message): finding for finding in findings}.values())


# --- Looks at a database a little at a time: what is short or moves at every look, all the rest in turns ---

SOME_JOBS = 100
"""Running jobs, and newest ones, that every look is at."""
MOST_CHANGED = 1000
TURN_PAGE = 200
TURN_SECONDS = 0.25
"""How long a look goes on with its turn: at one look a minute, 100,000 jobs are all seen within an hour or two."""
OPEN_SECONDS = 0.05
"""The same for the look at an open, which sees some hundred jobs in that time."""
OPEN_BYTES = 4 << 20
"""A file up to this size is given SQLite's own check at every open."""


class Survey:
    """`look` looks once; a turn through all jobs begins with the check of the database itself and is taken up again.

    The first turn begins at `after`, so that many short-lived processes do not all look at the same jobs.
    """

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = TURN_SECONDS,
        most_bytes: int | None = None,
        after: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._clock = clock
        self._after = after
        self._begun = False
        self._running_after = ""
        self._changed: dict[str, None] = {}

    def note(self, changes: Sequence[FlowChange]) -> None:
        """These jobs have changed: the next look is at them, too."""
        for change in changes[-MOST_CHANGED:]:
            self._changed[change.entry.job_id] = None
        while len(self._changed) > MOST_CHANGED:
            self._changed.pop(next(iter(self._changed)))

    def look(self) -> list[Finding]:
        """Every finding about what this look is at."""
        findings = [*self._store.missing_rules(), *self._store.table_faults()]
        until = self._clock() + self._seconds
        changed, self._changed = self._changed, {}
        ids = {*self._running(), *self._store.newest_ids(limit=SOME_JOBS), *changed}
        findings += findings_of(self._store, self._store.facts_of(ids))
        return without_repeats([*findings, *self._turn(until)])

    def _running(self) -> list[str]:
        ids = self._store.running_ids(after=self._running_after, limit=SOME_JOBS)
        self._running_after = ids[-1] if len(ids) == SOME_JOBS else ""
        return ids

    def _turn(self, until: float) -> list[Finding]:
        findings: list[Finding] = []
        if not self._begun:
            findings += self._store.damage(most_bytes=self._most_bytes)
            self._begun = True
        first = self._after
        has_wrapped = False
        while True:
            page = self._store.fact_page(after=self._after, limit=TURN_PAGE)
            findings += findings_of(self._store, page.facts)
            self._after = page.last or ""
            if page.last is None:
                self._begun = False  # the next turn is a new one
                if not first or has_wrapped:
                    return findings
                has_wrapped = True
            if self._clock() >= until or (has_wrapped and self._after >= first):
                return findings


def look_at_open(store: Store, *, chance: float) -> list[Finding]:
    """What is looked at when a database is opened: the same, for a moment; `chance`, below 1, says where it begins."""
    return Survey(store, seconds=OPEN_SECONDS, most_bytes=OPEN_BYTES, after=_place(store, chance)).look()


def _place(store: Store, chance: float) -> str:
    oldest, newest = store.oldest_id(), store.newest_ids(limit=1)
    if oldest is None or not newest:
        return ""
    first, last = time_of_ulid(oldest), time_of_ulid(newest[0])
    return ulid_from(first + round((last - first) * chance), 0)


# --- Repairs what can be repaired by legal transitions and by what is known to be true, and says what cannot ---


class Repaired(NamedTuple):
    """What has become of one action."""

    line: str
    is_done: bool = True


def plan(store: Store, *, progress: Callable[[int], None] = lambda _jobs: None) -> list[RepairAction]:
    """What should be done about the present findings; nothing is changed. `progress` as for a check."""
    return plan_for(store, check(store, deep=False, progress=progress))


def plan_for(store: Store, findings: Sequence[Finding]) -> list[RepairAction]:
    """The same about these findings; what has passed meanwhile is left alone."""
    if not findings:
        return []
    jobs = {finding.subject.removeprefix("job ") for finding in findings if finding.subject.startswith("job ")}
    facts = [one for one in store.facts_of(jobs) if isinstance(one, JobFacts)]
    return plan_repairs(findings, facts, store.now())


def apply(store: Store, actions: Sequence[RepairAction], *, actor: str, reason: str = "") -> list[Repaired]:
    """Carry out a plan; a job that has moved on meanwhile is left alone. One that cannot be repaired stops no other.

    What is repaired is journaled with why, and with `reason` behind it.
    """
    done = []
    taken_over: dict[str, str] | None = None
    for action in actions:
        match action.kind:
            case RepairKind.FINISH | RepairKind.GIVE_BACK:
                if taken_over is None:
                    recovered = store.recover(is_dead=lambda _owner: False, actor=actor)
                    taken_over = {one.job_id: one.outcome for one in recovered}
                outcome = taken_over.get(action.job_id or "", "has moved on by itself")
                done.append(Repaired(f"{action.kind}: job {action.job_id}: {outcome}"))
            case RepairKind.REPROJECT:
                done.append(_reproject(store, action, actor=actor, reason=reason))
            case RepairKind.UNREPAIRABLE:
                done.append(Repaired(f"not repaired: {action.why}", is_done=False))
            case _:
                assert_never(action.kind)
    return done


def _reproject(store: Store, action: RepairAction, *, actor: str, reason: str) -> Repaired:
    assert action.job_id is not None
    try:
        why = f"{action.why}; {reason}" if reason else action.why
        state = store.reproject(action.job_id, actor=actor, reason=why)
    except HoldfastError as error:
        return Repaired(f"not repaired: job {action.job_id}: {error}", is_done=False)
    return Repaired(f"{action.kind}: job {action.job_id} is {state} again")


# --- The guard's rounds: invariants of what moves, of all the rest in turns, and stalls -----------------

log = logging.getLogger("holdfast.guard")

TELL_AGAIN = 3600.0
MOST_TOLD = 10_000
STALL_RETRY_MS = 60_000
"""A stalled job is tried again after this pause, so that whatever held it up has time to pass."""


Check = Callable[[], Iterable[Finding]]
"""An application's own look at its rows: cheap, and changing nothing."""


class CountsFindings(Protocol):
    """Where findings are counted."""

    findings: Counter[str]


def stalled(store: Store) -> list[tuple[ExecutionRecord, StallVerdict]]:
    """Running executions that are slow or stalled."""
    slow: list[tuple[ExecutionRecord, StallVerdict]] = []
    now = store.now()
    under_way = [execution for execution in store.under_way() if execution.status in LIVE_STATUSES]
    current = {one.exec_id: one for one in store.running([execution.job_id for execution in under_way])}
    for execution in under_way:
        progressed_at = store.last_progress(execution.exec_id)
        if progressed_at is None:
            continue
        verdict = stall_verdict(
            progressed_at=progressed_at,
            now=now,
            stall_ms=stall_limit(store.job(execution.job_id), current.get(execution.exec_id)),
            retry_at=execution.retry_at,
        )
        if verdict is not StallVerdict.MOVING:
            slow.append((execution, verdict))
    return slow


def stop_stalled(store: Store, *, actor: str, reason: str = "", only: Collection[str] | None = None) -> list[str]:
    """Fence every stalled execution, or `only` those of these jobs, and let their jobs try again; returns the jobs."""
    jobs = []
    for execution, verdict in stalled(store):
        if verdict is not StallVerdict.STALLED or (only is not None and execution.job_id not in only):
            continue
        not_before = store.now() + STALL_RETRY_MS
        if store.stop_stalled(execution.exec_id, actor=actor, not_before=not_before, reason=reason):
            jobs.append(execution.job_id)
    return jobs


class Watch:
    """`run_once` looks once. Stalled jobs are recovered if that is `automatic`, else only reported."""

    def __init__(
        self, store: Store, *, telemetry: CountsFindings, automatic: bool, actor: str, checks: Sequence[Check] = ()
    ) -> None:
        self._store = store
        self._checks = tuple(checks)
        if not all(map(callable, self._checks)):
            raise BadInput("checks are functions that return findings", hint="checks=[function]")
        self._survey = Survey(store)
        self._told: dict[Finding, float] = {}
        self._telemetry = telemetry
        self._automatic = automatic
        self._actor = actor

    def __enter__(self) -> Self:
        self._store.changes.observe(self._survey.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._store.changes.forget(self._survey.note)

    def run_once(self) -> list[str]:
        """What was found and done, line by line. Crash: each recovery is one transaction."""
        findings = [*self._survey.look(), *self._checked()]
        for finding in findings:
            self._telemetry.findings[finding.code] += 1
            self._tell(finding)
        return [*map(_line, findings), *self._look_for_stalls()]

    def _checked(self) -> Iterator[Finding]:
        """What the application's own checks find. One that fails hides neither the others nor the stalls."""
        for check in self._checks:
            try:
                yield from [finding for finding in check() if isinstance(finding, Finding)]
            except (HoldfastError, OSError) as error:
                log.warning("a check of the application could not look: %s", error)
            except BaseException:  # whatever somebody else's code raises, an exit too: this thread goes on
                log.exception("a check of the application failed; it will be asked again")

    def _tell(self, finding: Finding) -> None:
        """Log it once, and again now and then: it is found at every look until somebody has dealt with it."""
        now = time.monotonic()
        if now - self._told.get(finding, -TELL_AGAIN) >= TELL_AGAIN:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[finding] = now
            level = logging.ERROR if finding.severity is Severity.ERROR else logging.WARNING
            log.log(level, _line(finding), extra={"hint": "holdfast check"})

    def _look_for_stalls(self) -> list[str]:
        if self._automatic:
            lines = [f"recovered stalled job {job_id}" for job_id in stop_stalled(self._store, actor=self._actor)]
        else:
            lines = [
                f"stalled: job {execution.job_id}, held by {label_of(execution.lease_owner)}, waits for approval: "
                f"holdfast stalled --recover {execution.job_id}"
                for execution, verdict in stalled(self._store)
                if verdict is StallVerdict.STALLED
            ]
        for line in lines:
            log.warning(line)
        return lines


def _line(finding: Finding) -> str:
    return f"{finding.severity}: {finding.subject}: {finding.message}"


# --- What is done every now and then, in the background, and goes on after an error ---------------------

rounds_log = logging.getLogger("holdfast.worker")


class Rounds:
    """Calls `run_once` every `interval` seconds from a thread of its own, the first time `at_once` or after that."""

    def __init__(
        self, run_once: Callable[[], object], *, interval: float, name: str = "guard", at_once: bool = True
    ) -> None:
        self._run_once = run_once
        self._at_once = at_once
        self._interval = interval
        self._name = name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"holdfast-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(5)

    def _loop(self) -> None:
        if not self._at_once and self._ended.wait(self._interval):
            return
        while True:
            try:
                self._run_once()
            except StoreError as error:
                rounds_log.warning("the %s could not look: %s", self._name, error)
            except Exception:  # a fault of one round must not end the rounds, and is told in full
                rounds_log.exception("the %s failed; it will look again", self._name)
            if self._ended.wait(self._interval):
                return


# --- Forgets jobs that ended long ago, before their history fills the disk ------------------------------

BATCH = 100
"""Jobs removed in one transaction: few, so that workers are never kept waiting for long."""
DAY_MS = 86_400_000
MOST_DAYS = 36_500


def remove_ended(store: Store, *, days: float, actor: str) -> list[str]:
    """Remove what ended more than so many days ago. Crash: a job is removed whole or not; the rest is found again."""
    before = ended_before(store, days)
    removed: list[str] = []
    while True:
        batch = store.prune(before=before, limit=BATCH, actor=actor, dry_run=False)
        removed += batch
        if len(batch) < BATCH:
            return removed


def ended_before(store: Store, days: float) -> int:
    """The time that was so many days ago; BadInput if there was none."""
    return store.now() - round(checked_days(days) * DAY_MS)


def checked_days(days: float) -> float:
    """`days`, or BadInput."""
    # Written so that "not a number", which compares false with everything, is refused too.
    if not 0 <= days <= MOST_DAYS:
        raise BadInput(f"{days!r} is not an age in days", hint=f"a number from 0 to {MOST_DAYS:,}")
    return days
