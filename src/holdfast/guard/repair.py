"""Repairs what can be repaired by legal transitions and by what is known to be true, and says what cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, assert_never

from holdfast.core.facts import JobFacts
from holdfast.core.repair_plan import RepairAction, RepairKind, plan_repairs
from holdfast.errors import HoldfastError
from holdfast.guard.check import check
from holdfast.store.protocol import Store


class Repaired(NamedTuple):
    """What has become of one action."""

    line: str
    is_done: bool = True


def plan(store: Store, *, progress: Callable[[int], None] = lambda _jobs: None) -> list[RepairAction]:
    """What should be done about the present findings; nothing is changed. `progress` as for a check."""
    findings = check(store, deep=False, progress=progress)
    if not findings:
        return []
    jobs = {finding.subject.removeprefix("job ") for finding in findings if finding.subject.startswith("job ")}
    facts = [one for one in store.facts_of(jobs) if isinstance(one, JobFacts)]
    return plan_repairs(findings, facts, store.now())


def apply(store: Store, actions: Sequence[RepairAction], *, actor: str) -> list[Repaired]:
    """Carry out a plan; a job that has moved on meanwhile is left alone. One that cannot be repaired stops no other."""
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
                done.append(_reproject(store, action, actor=actor))
            case RepairKind.UNREPAIRABLE:
                done.append(Repaired(f"not repaired: {action.why}", is_done=False))
            case _:
                assert_never(action.kind)
    return done


def _reproject(store: Store, action: RepairAction, *, actor: str) -> Repaired:
    assert action.job_id is not None
    try:
        state = store.reproject(action.job_id, actor=actor, reason=action.why)
    except HoldfastError as error:
        return Repaired(f"not repaired: job {action.job_id}: {error}", is_done=False)
    return Repaired(f"{action.kind}: job {action.job_id} is {state} again")
