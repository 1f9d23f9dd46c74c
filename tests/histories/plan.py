"""From a seed to everything a history will try: who submits what, which orders operators give, what breaks and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

Store = Literal["sqlite", "postgres"]

PLAN_FILE = "plan.json"
BURST = 0.35
"""Which part of a client's jobs comes at once, at the beginning."""


class Ask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One submit of a client."""

    at: float
    flow: str
    script: dict[str, Any]
    key: str | None = None
    priority: int = 0
    delay: float = 0.0
    after: int | None = None
    """The number of an earlier ask of the same client, whose job has to succeed first."""
    together: int = 1
    """Submitted in one transaction with so many copies of itself, each of which runs after the one before."""
    wait: float = 0.0
    """How long the client then waits for the end of the job."""


class Order(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing an operator does."""

    at: float
    verb: str
    pick: float = 0.0
    """Which of the jobs that are there: a fraction of their number."""
    value: str = ""
    command: bool = False
    """By the command line, and not by the library."""


class Fault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that breaks."""

    at: float
    kind: str
    target: int = 0
    seconds: float = 0.0
    value: float = 0.0


class Plan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All of a history but the time that things take."""

    seed: int
    store: Store
    seconds: float
    clients: list[list[Ask]]
    orders: list[Order]
    faults: list[Fault]
    workers: int = 3
    embedded: int = 1
    concurrency: int = 8
    lease: float = 4.0
    small_disk: bool = False
    clock: bool = False
    planted: str = ""
    probes: tuple[str, ...] = ("submit", "resume", "due")


def save(plan: Plan, directory: Path) -> None:
    (directory / PLAN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(plan)))


def load(directory: Path) -> Plan:
    return msgspec.json.decode((directory / PLAN_FILE).read_bytes(), type=Plan)


def make(store: Store, seed: int, seconds: float) -> Plan:
    """The plan of this seed."""
    rng = random.Random(f"{store}:{seed}:{seconds}")
    clock = rng.random() < 0.35
    small_disk = store == "sqlite" and rng.random() < 0.4
    clients = [_client(rng, seconds) for _ in range(rng.randint(2, 3))]
    orders = _orders(rng, store, seconds)
    faults = _faults(rng, store, seconds, clock=clock, small_disk=small_disk)
    return Plan(
        seed=seed,
        store=store,
        seconds=seconds,
        clients=clients,
        orders=orders,
        faults=faults,
        workers=rng.randint(3, 4),
        embedded=rng.randint(1, 2),
        concurrency=rng.choice([2, 4, 8, 16]),
        lease=rng.choice([3.0, 4.0, 6.0]),
        small_disk=small_disk,
        clock=clock,
    )


# --- clients --------------------------------------------------------------------------------------------------


def _client(rng: random.Random, seconds: float) -> list[Ask]:
    count = max(12, round(seconds * rng.uniform(3, 6)))
    lengths = rng.choice([(0,), (0, 5, 50), (0, 0, 1, 5, 20, 60, 150)])
    times = sorted(0.0 if rng.random() < BURST else rng.uniform(0, seconds) for _ in range(count))
    asks: list[Ask] = []
    for at in times:
        flow = rng.choices(["ledger", "relay", "plain", "parent", "line"], [9, 7, 5, 3, 2])[0]
        ask = Ask(at=round(at, 3), flow=flow, script=_script(rng, flow, lengths))
        if rng.random() < 0.35:
            ask.key = f"key-{rng.randrange(12)}"  # few, so that clients collide
        if rng.random() < 0.2:
            ask.priority = rng.choice([-5, 1, 10])
        if rng.random() < 0.15:
            ask.delay = rng.choice([0.05, 0.5, 2.0, 3600.0])
        if asks and rng.random() < 0.15:
            ask.after = rng.randrange(max(0, len(asks) - 6), len(asks))
        elif ask.key is None and rng.random() < 0.08:
            ask.together = rng.randint(2, 5)
        if rng.random() < 0.04:
            ask.wait = rng.uniform(0.1, 1.0)
        asks.append(ask)
    return asks


def _script(rng: random.Random, flow: str, lengths: Sequence[int]) -> dict[str, Any]:
    script: dict[str, Any] = {"n": rng.randrange(1_000_000), "ms": rng.choice(lengths)}
    if rng.random() < 0.15:
        script["deaf"] = True
    if rng.random() < 0.12:
        script["fail"] = rng.choice([1, 1, 2, 3])  # three are more than a step has
    if rng.random() < 0.12:
        script["commit_fail"] = rng.choice([1, 2, 4])
    if rng.random() < 0.02:
        script["slow"] = 1
    if rng.random() < 0.15:
        script["outcome"] = rng.choice(["abort", "abort", "unrecoverable", "handoff"])
    if rng.random() < 0.1:
        script["rewinds"] = rng.randint(1, 3)
    if rng.random() < 0.1:
        script["cleanup_fail"] = rng.choice([1, 3])
    if flow == "parent":
        script["children"] = rng.randint(1, 4)
        script["child_outcome"] = rng.choice(["", "", "abort"])
    return script


# --- operators ------------------------------------------------------------------------------------------------

_VERBS = {
    "cancel": 12, "retry": 8, "release": 6, "force": 5, "pause": 3, "resume": 4, "limit": 4, "prune": 3, "check": 2,
    "look": 3,
}  # fmt: skip


def _orders(rng: random.Random, store: Store, seconds: float) -> list[Order]:
    verbs = dict(_VERBS) | ({"backup": 3} if store == "sqlite" else {})
    orders = []
    for at in sorted(rng.uniform(0.3, seconds) for _ in range(round(seconds * 2.5))):
        verb = rng.choices(list(verbs), list(verbs.values()))[0]
        value = {
            "force": rng.choice(["failed", "quarantined", "pending"]),
            "limit": rng.choice(["1", "2", "3", "5", "none"]),
        }.get(verb, "")
        order = Order(at=round(at, 3), verb=verb, pick=rng.random(), value=value, command=rng.random() < 0.15)
        orders.append(order)
        if verb == "pause":
            orders.append(Order(at=round(at + rng.uniform(0.2, 1.5), 3), verb="resume"))
        if rng.random() < 0.1:  # two who want the same
            orders.append(msgspec.structs.replace(order))
    orders.sort(key=lambda order: order.at)
    return orders


# --- faults ---------------------------------------------------------------------------------------------------

_EVERYWHERE = {"kill": 10, "freeze": 6, "stop": 7, "kill-client": 2, "freeze-client": 2, "two-signals": 1}
_POSTGRES = {
    "cut": 4, "cut-commits": 4, "hang": 3, "delay": 2, "refuse": 2, "terminate": 3, "kill-backend": 1,
    "restart": 1, "crash-server": 1, "freeze-server": 2, "hold-rows": 4,
}  # fmt: skip


def _faults(rng: random.Random, store: Store, seconds: float, *, clock: bool, small_disk: bool) -> list[Fault]:
    kinds = dict(_EVERYWHERE)
    if store == "postgres":
        kinds |= _POSTGRES
    if clock:
        kinds["clock"] = 8
    if small_disk:
        kinds["fill"] = 6
    # Not all of them in every history: many of one kind find what one of each kind does not.
    kinds = {kind: weight for kind, weight in kinds.items() if rng.random() < 0.6} or {"kill": 1}
    pace = rng.choice([0.4, 1.0, 1.0, 2.0])
    faults = []
    at = rng.uniform(0.5, 1.5)
    while at < seconds:
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        faults.append(_fault(rng, kind, at))
        at += rng.uniform(0.3, 2.2) * pace
    return faults


def _fault(rng: random.Random, kind: str, at: float) -> Fault:
    longest = {
        "freeze": rng.choice([0.3, 1.5, 8.0]),
        "freeze-client": 3.0,
        "freeze-server": rng.choice([1.0, 6.0]),
        "hang": rng.choice([1.0, 6.0, 12.0]),
        "hold-rows": rng.choice([1.0, 6.0]),
    }.get(kind, 2.0)
    value = 0.0
    if kind == "clock":
        value = rng.choice([-3600.0, -30.0, -2.0, 1.0, 5.0, 60.0, 3600.0])
    if kind in ("cut-commits", "hang", "hold-rows"):
        value = rng.choice([0.1, 0.3, 1.0])
    seconds = round(rng.uniform(0.1, longest), 3)
    return Fault(at=round(at, 3), kind=kind, target=rng.randrange(1000), seconds=seconds, value=value)
