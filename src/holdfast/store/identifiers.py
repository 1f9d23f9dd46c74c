"""New ids: ULIDs, so that ids sort by time and new rows land next to each other."""

from __future__ import annotations

import os
import threading

from holdfast.core.names import ulid_from

_lock = threading.Lock()
_last_milliseconds = 0
_last_randomness = 0


def new_ulid(milliseconds: int) -> str:
    """A ULID of that time, larger than any this process made for the same millisecond."""
    global _last_milliseconds, _last_randomness
    with _lock:
        if milliseconds == _last_milliseconds:
            _last_randomness += 1
        else:
            _last_milliseconds = milliseconds
            # The top bit stays free, so that counting up within a millisecond cannot overflow.
            _last_randomness = int.from_bytes(os.urandom(10), "big") >> 1
        return ulid_from(milliseconds, _last_randomness)
