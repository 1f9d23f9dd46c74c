"""Forgets jobs that ended long ago, before their history fills the disk."""

from __future__ import annotations

from holdfast.errors import BadInput
from holdfast.store.protocol import Store

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
