"""Repairs what legal, journaled transitions can repair, and says what they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from holdfast.core.invariants import JobFacts
from holdfast.core.repair_plan import RepairAction, RepairKind, plan_repairs
from holdfast.guard.check import check
from holdfast.store.protocol import Store


def plan(store: Store) -> list[RepairAction]:
    """What should be done about the present findings; nothing is changed."""
    findings = check(store, deep=False)
    if not findings:
        return []
    subjects = {finding.subject for finding in findings}
    facts = [
        one
        for one in store.facts(unsettled_only=False)
        if isinstance(one, JobFacts) and f"job {one.job.job_id}" in subjects
    ]
    return plan_repairs(findings, facts, store.now())


def apply(store: Store, actions: Sequence[RepairAction], *, actor: str) -> list[str]:
    """Carry out a plan; a job that has moved on meanwhile is left alone. Returns what was done, line by line."""
    lines = []
    taken_over: dict[str, str] | None = None
    for action in actions:
        match action.kind:
            case RepairKind.FINISH | RepairKind.GIVE_BACK:
                if taken_over is None:
                    recovered = store.recover(is_dead=lambda _owner: False, actor=actor)
                    taken_over = {one.job_id: one.outcome for one in recovered}
                outcome = taken_over.get(action.job_id or "", "has moved on by itself")
                lines.append(f"{action.kind}: job {action.job_id}: {outcome}")
            case RepairKind.REPROJECT:
                assert action.job_id is not None
                state = store.reproject(action.job_id, actor=actor, reason=action.why)
                lines.append(f"{action.kind}: job {action.job_id} is {state} again")
            case RepairKind.UNREPAIRABLE:
                lines.append(f"not repaired: {action.why}")
            case _:
                assert_never(action.kind)
    return lines
