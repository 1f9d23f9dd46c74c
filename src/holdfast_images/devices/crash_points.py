"""Named places where a process may die while it changes a device. Inert, unless a test sets a hook."""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "create.temporary-made",
    "create.identity-written",
    "create.renamed",
    "seal.synced",
    "seal.identity-aside",
    "seal.identity-replaced",
    "snapshot.temporary-made",
    "snapshot.half-copied",
    "snapshot.copied",
    "snapshot.identity-written",
    "snapshot.renamed",
    "delete.trashed",
    "delete.half-removed",
    "delete.removed",
)

_hook: Callable[[str], None] | None = None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of each point passed; None makes the points inert again."""
    global _hook
    _hook = hook


def crash_point(name: str) -> None:
    """A process may die here."""
    if _hook is not None:
        _hook(name)
