"""Forgets jobs that ended long ago, before their history fills the disk."""

from __future__ import annotations

from holdfast.store.protocol import Store

BATCH = 100
"""Jobs removed in one transaction: few, so that workers are never kept waiting for long."""
DAY_MS = 86_400_000


def remove_ended(store: Store, *, days: float, actor: str) -> list[str]:
    """Remove what ended more than so many days ago. Crash: a job is removed whole or not; the rest is found again."""
    before = store.now() - round(days * DAY_MS)
    removed: list[str] = []
    while True:
        batch = store.prune(before=before, limit=BATCH, actor=actor, dry_run=False)
        removed += batch
        if len(batch) < BATCH:
            return removed
