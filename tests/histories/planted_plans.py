"""For each planted fault a history in which it is sure to show, and no longer than that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.histories.plan import Ask, Fault, Plan, Store

LEASE = 2.0

SHOWN_BY: Mapping[str, frozenset[str]] = {
    "unfenced-write": frozenset({"effect"}),
    "dropped-give-back": frozenset({"crash"}),
    "doubled-effect": frozenset({"effect"}),
    "limit-off-by-one": frozenset({"limit"}),
    "lost-wake-up": frozenset({"wake-up"}),
    "lost-submit": frozenset({"lost"}),
    "skipped-cleanup": frozenset({"cleanup"}),
    "step-run-again": frozenset({"re-run", "fence"}),
    "unwritten-journal": frozenset({"transition"}),
    "key-held-twice": frozenset({"key"}),
}
"""The rules of the checker of which at least one finds the fault."""


def planted_plan(name: str, store: Store) -> Plan:
    """A history for this fault; with the fault taken out of it, it is an ordinary one."""
    plan = Plan(
        seed=0,
        store=store,
        seconds=0.0,
        clients=[],
        orders=[],
        faults=[],
        workers=2,
        embedded=0,
        lease=30.0,
        planted=name,
        probes=(),
    )
    _MAKERS[name](plan)
    return plan


def _asks(count: int, flow: str, *, every: float = 0.0, keys: int = 0, **script: Any) -> list[Ask]:
    return [
        Ask(
            at=round(number * every, 3),
            flow=flow,
            script={"n": number, **script},
            key=f"key-{number % keys}" if keys else None,
        )
        for number in range(count)
    ]


def _unfenced_write(plan: Plan) -> None:
    # Frozen between two tries of its commit steps, a worker comes back when others have taken over and committed. Small
    # jobs all the time keep those awake: they look for what has run out as soon as it has.
    plan.lease = LEASE
    plan.concurrency = 5
    plan.clients = [_asks(8, "patient", commit_fail=1), _asks(25, "plain", every=0.25)]
    plan.faults = [Fault(at=1.5, kind="freeze", target=0, seconds=LEASE + 3)]


def _dropped_give_back(plan: Plan) -> None:
    plan.clients = [_asks(20, "plain", every=0.02, ms=150)]
    plan.faults = [Fault(at=0.3, kind="stop", target=0)]


def _doubled_effect(plan: Plan) -> None:
    plan.clients = [_asks(6, "ledger", commit_fail=1)]


def _limit_off_by_one(plan: Plan) -> None:
    plan.clients = [_asks(16, "ledger", ms=60)]


def _lost_wake_up(plan: Plan) -> None:
    plan.clients = [_asks(1, "parent")]
    plan.probes = ("submit",)


def _lost_submit(plan: Plan) -> None:
    plan.clients = [_asks(20, "plain")]


def _skipped_cleanup(plan: Plan) -> None:
    plan.clients = [_asks(4, "ledger", outcome="abort")]


def _step_run_again(plan: Plan) -> None:
    plan.clients = [_asks(4, "parent", children=1, ms=20)]


def _unwritten_journal(plan: Plan) -> None:
    plan.clients = [_asks(4, "plain")]


def _key_held_twice(plan: Plan) -> None:
    plan.clients = [_asks(12, "relay", keys=2, ms=300), _asks(12, "relay", keys=2, ms=300)]


_MAKERS: Mapping[str, Callable[[Plan], None]] = {
    "unfenced-write": _unfenced_write,
    "dropped-give-back": _dropped_give_back,
    "doubled-effect": _doubled_effect,
    "limit-off-by-one": _limit_off_by_one,
    "lost-wake-up": _lost_wake_up,
    "lost-submit": _lost_submit,
    "skipped-cleanup": _skipped_cleanup,
    "step-run-again": _step_run_again,
    "unwritten-journal": _unwritten_journal,
    "key-held-twice": _key_held_twice,
}
