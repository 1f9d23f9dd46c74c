"""Looking for what is wrong, in the background: a check may take minutes, and one at a time is enough."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast import guard
from holdfast.core.facts import Finding
from holdfast.core.repair import RepairAction
from holdfast.errors import HoldfastError
from holdfast.store.protocol import Store
from holdfast.web.problems import Refused
from holdfast.web.routes import Services

log = logging.getLogger("holdfast.web")

SHOWN = 1000


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the last check has found; before the first one, what was found when the store was opened."""

    state: Literal["idle", "running"]
    source: Literal["open", "check"]
    deep: bool = False
    started_at: int | None = None
    finished_at: int | None = None
    jobs_checked: int = 0
    failure: str | None = None
    """Why the last check could not come to its end."""
    total: int = 0
    findings: list[Finding] = []
    """The first of them."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What should be done about the findings of the last check; its ETag stands for the actions."""

    actions: list[RepairAction]

    @property
    def tag(self) -> str:
        """The same actions have the same one."""
        return hashlib.sha256(msgspec.json.encode(self.actions)).hexdigest()


class BackgroundCheck:
    """The last check, and the one that runs."""

    def __init__(self, services: Services) -> None:
        self._store: Store = services.engine.store
        self._lock = threading.Lock()
        self._found: Sequence[Finding] = services.engine.findings
        self._last = CheckReport(state="idle", source="open")

    def findings(self) -> CheckReport:
        """How it stands."""
        with self._lock:
            found = self._found
            return msgspec.structs.replace(self._last, total=len(found), findings=list(found[:SHOWN]))

    def start(self, *, deep: bool) -> CheckReport:
        """Begin a check; a problem if one is under way."""
        with self._lock:
            if self._last.state == "running":
                hint = "look again later: GET /v1/findings"
                raise Refused(409, "check-running", "a check is under way already", hint=hint)
            self._last = msgspec.structs.replace(
                self._last, state="running", deep=deep, started_at=self._store.now(), jobs_checked=0
            )
        threading.Thread(target=self._check, args=(deep,), name="holdfast-web-check", daemon=True).start()
        return self.findings()

    def _check(self, deep: bool) -> None:  # noqa: FBT001 - a thread's argument
        failure = None
        found: Sequence[Finding] | None = None
        try:
            found = guard.check(self._store, deep=deep, progress=self._progress)
        except HoldfastError as error:
            failure = str(error)
        except Exception as error:
            log.exception("a check failed by a fault of Holdfast's own")
            failure = type(error).__name__
        with self._lock:
            self._found = self._found if found is None else found
            self._last = msgspec.structs.replace(
                self._last,
                state="idle",
                source=self._last.source if found is None else "check",
                finished_at=self._store.now(),
                failure=failure,
            )

    def _progress(self, jobs: int) -> None:
        with self._lock:
            self._last = msgspec.structs.replace(self._last, jobs_checked=jobs)

    def plan(self) -> Plan:
        """What should be done about those findings that are still there."""
        with self._lock:
            found = list(self._found)
        jobs = {one.subject.removeprefix("job ") for one in found if one.subject.startswith("job ")}
        facts = self._store.facts_of(jobs) if jobs else []
        still = {(one.code, one.subject) for one in guard.findings_of(self._store, facts)}
        left = [one for one in found if not one.subject.startswith("job ") or (one.code, one.subject) in still]
        return Plan(actions=guard.plan_for(self._store, left))

    def apply(self, plan: Plan, *, actor: str) -> list[guard.Repaired]:
        """Carry it out; a job that has moved on meanwhile is left alone."""
        return guard.apply(self._store, plan.actions, actor=actor)
