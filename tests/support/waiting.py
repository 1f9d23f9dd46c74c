"""Waiting for what happens elsewhere: look again until it is so, or fail with a sentence when the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 20.0
"""Far more than anything here takes, so that a slow machine is not taken for a bug."""


def eventually(look: Callable[[], T], what: str = "", *, within: float = PATIENCE) -> T:
    """The first true answer of `look`; AssertionError if there is none in time."""
    deadline = time.monotonic() + within
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within} s: {what or look}")
        time.sleep(0.005)
