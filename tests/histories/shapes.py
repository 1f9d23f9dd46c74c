"""The flows of a history as plain data: for the plan and the checker, which read no code of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STEPS: Mapping[str, Sequence[str]] = {
    "ledger": ("enter", "work", "book"),
    "relay": ("fetch", "mix", "book"),
    "plain": ("enter", "work", "last"),
    "parent": ("spawn", "gather", "book"),
    "line": ("first", "second"),
    "patient": ("enter", "book"),
}
"""The steps of each flow, in order."""

EFFECT_FLOWS = frozenset({"ledger", "relay", "parent", "patient"})
"""Flows whose last step commits a row of `history_effects`."""

CLEANUP_FLOWS = frozenset({"ledger", "relay", "parent"})
"""Flows with a cleanup."""

LOGGED_FLOWS = frozenset(STEPS) - {"line"}
"""Flows whose steps are this package's, and log what they do; those of a pipeline are the engine's own."""

QUEUES: Mapping[str, str] = {"ledger": "narrow", "relay": "moving", "plain": "", "parent": "", "line": ""}
FIXED_QUEUE, FIXED_LIMIT = "narrow", 2
"""A queue whose limit nobody changes."""
MOVING_QUEUE, MOVING_LIMIT = "moving", 3
"""A queue that operators limit, pause and resume."""

EFFECTS_TABLE = "history_effects"
