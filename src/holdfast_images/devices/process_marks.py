"""Who has made something: a process, known by its number and when it began, since numbers are used again."""

from __future__ import annotations

import os


def this_process() -> str:
    """The mark of this process."""
    return _mark_of(str(os.getpid()))


def is_alive(mark: str) -> bool:
    """Does the process live that has this mark?"""
    return bool(mark) and mark == _mark_of(mark.partition("-")[0])


def _mark_of(process: str) -> str:
    try:
        with open(f"/proc/{int(process)}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the 20th field after it is the time of its start.
            return f"{process}-{file.read().rpartition(b')')[2].split()[19].decode()}"
    except (OSError, ValueError):
        return ""
