"""A write that cannot be made keeps no other of its group back: the group is halved until that one stands alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.errors import StoreUnavailable
from holdfast.store.messages import Write
from holdfast.store.postgres.errors import is_lock_timeout

FAILURES = 14
"""After so many in a row nothing can be written at the moment: a whole group down to one write, and a few more."""

Answer = Exception | None


def write_in_parts(
    batch: Sequence[Write], attempt: Callable[[Sequence[Write]], list[Answer]], error: StoreUnavailable
) -> list[Answer]:
    """Make each write that can be made; the others are answered by the error that kept them back, which passes.

    `error` is what the whole of it has met. Writes of one execution stay in their order: behind one that was kept back
    none is made.
    """
    answers: list[Answer] = [error] * len(batch)
    kept_back: set[str] = set()
    parts = _halves(range(len(batch)))
    failures = 0
    while parts and failures < FAILURES:
        part = [index for index in parts.pop() if batch[index].exec_id not in kept_back]
        if not part:
            continue
        try:
            made = attempt([batch[index] for index in part])
        except Exception as failed:
            failures += 1
            if len(part) > 1 and (is_lock_timeout(failed) or not isinstance(failed, StoreUnavailable)):
                parts += _halves(part)
                continue
            made = [failed] * len(part)
            if isinstance(failed, StoreUnavailable) and not is_lock_timeout(failed):
                parts.clear()  # nobody is there to ask
        else:
            failures = 0
        for index, answer in zip(part, made, strict=True):
            answers[index] = answer
            if isinstance(answer, StoreUnavailable):
                kept_back.add(batch[index].exec_id)
    return answers


def _halves(part: Sequence[int]) -> list[Sequence[int]]:
    """The first half last, because that is where it is taken from."""
    middle = len(part) // 2
    return [part[middle:], part[:middle]]
