"""Is a worker well? Judged by what its threads have done lately, not by whether the process is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PATIENCE = 30.0
"""Seconds without a round of the scheduler, or without an answer of the store, after which a worker is not well."""


class Vitals(NamedTuple):
    """What is known of a worker at one moment; times are seconds since then."""

    failure: BaseException | None
    is_ready: bool
    threads: Mapping[str, bool]
    """name → does it live?"""
    since_round: float
    since_contact: float
    since_renewal: float
    lease: float
    recovery_interval: float
    holds_jobs: bool
    writer_is_stuck: bool
    is_starved: bool


def problems(vitals: Vitals) -> list[str]:
    """What is wrong, one sentence each; none if the worker is well. All of it, not only the first."""
    patience = max(PATIENCE, 3 * vitals.recovery_interval)
    found = []
    if vitals.failure is not None:
        found.append(f"the worker cannot go on: {type(vitals.failure).__name__}")
    if not vitals.is_ready:
        found.append("the worker has not begun: the store could not be used yet")
    found += [f"the {name} thread is gone" for name, lives in vitals.threads.items() if not lives]
    if vitals.since_round > patience:
        found.append(f"the scheduler has been stuck for {vitals.since_round:.0f} s")
    if vitals.since_contact > patience:
        found.append(f"the store has not answered for {vitals.since_contact:.0f} s")
    if vitals.holds_jobs and vitals.since_renewal > vitals.lease:
        found.append(f"leases have not been renewed for {vitals.since_renewal:.0f} s")
    if vitals.writer_is_stuck:
        found.append("what was done could not be recorded for longer than a lease")
    if vitals.is_starved:
        found.append("no thread can be had for steps")
    return found
