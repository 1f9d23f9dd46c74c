"""What a thread reads ahead comes in order, ends once and for all, and fails where it failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from holdfast_images.archive.compression import ReadAhead
from holdfast_images.archive.entry import Reason
from holdfast_images.errors import ImageRefused


def numbered(buffers: int) -> Callable[[memoryview], int]:
    """Fills as many buffers, each with its number; then it is at its end."""
    done = 0

    def fill(target: memoryview) -> int:
        nonlocal done
        done += 1
        target[:] = bytes([done]) * len(target)
        return len(target) if done <= buffers else 0

    return fill


def test_buffers_come_in_their_order_and_the_end_again_and_again() -> None:
    with closing(ReadAhead(numbered(20), 8)) as ahead:
        seen = [(bytes(buffer[:count]), count) for buffer, count in (ahead.next() for _ in range(23))]

    assert seen == [(bytes([number]) * 8, 8) for number in range(1, 21)] + [(b"", 0)] * 3


def test_a_buffer_stays_as_it_is_until_the_next_one_is_asked_for() -> None:
    with closing(ReadAhead(numbered(200), 8)) as ahead:
        for number in range(1, 201):
            buffer, _ = ahead.next()
            # Whoever is faster: the thread has no buffer left to fill but those that were given back.
            assert bytes(buffer) == bytes([number]) * 8


def test_a_failure_comes_after_what_was_read_before_it_and_stays() -> None:
    fill = numbered(3)

    def cut_off(target: memoryview) -> int:
        return fill(target) or _refuse()

    with closing(ReadAhead(cut_off, 8)) as ahead:
        counts = [ahead.next()[1] for _ in range(3)]
        for _ in range(2):
            with pytest.raises(ImageRefused):
                ahead.next()

    assert counts == [8, 8, 8]


@pytest.mark.parametrize("asked", [0, 1, 5])
def test_no_thread_is_left_when_it_is_closed_half_way(asked: int) -> None:
    before = threading.active_count()
    ahead = ReadAhead(numbered(1000), 8)
    for _ in range(asked):
        ahead.next()
    ahead.close()

    assert threading.active_count() == before


def _refuse() -> int:
    raise ImageRefused(Reason.TRUNCATED, "cut off")
