"""Checks everything, then reports everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.facts import Finding, JobFacts
from holdfast.core.invariants import check_job
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
