"""Checks everything, then reports everything."""

from __future__ import annotations

from itertools import islice

from holdfast.core.invariants import Finding, JobFacts, check_job
from holdfast.store.protocol import Store

QUICK_JOBS = 1000


def check(store: Store, *, deep: bool) -> list[Finding]:
    """Every finding about the database and every job in it; `deep` reads every page as well."""
    findings = list(store.integrity(deep=deep))
    for facts in store.facts(unsettled_only=False):
        findings += _findings(store, facts)
    return _without_repeats(findings)


def check_quickly(store: Store) -> list[Finding]:
    """The rules of the database, and the jobs that are running: cheap whatever the history, so fit for every open."""
    findings = list(store.missing_rules())
    for facts in islice(store.facts(unsettled_only=True), QUICK_JOBS):
        findings += _findings(store, facts)
    return _without_repeats(findings)


def _findings(store: Store, facts: JobFacts | Finding) -> list[Finding]:
    return [facts] if isinstance(facts, Finding) else check_job(facts, store.now())


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    return list({(finding.code, finding.subject, finding.message): finding for finding in findings}.values())
