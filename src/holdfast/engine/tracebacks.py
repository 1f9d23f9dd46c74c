"""Tracebacks as bounded text: of an exception, whatever it is, and of a step that is still running.

Only text leaves this module. A stored exception would keep the frames of a step alive, and with them its cursors and
connections. Values of variables are never shown.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.core.text import storable

if TYPE_CHECKING:
    from holdfast.engine.run import LiveRun

TRACEBACK_LIMIT = 8192
"""Bytes of a stored traceback. The end is worth more than the beginning: it names the error and where it was raised."""
HEAD_SHARE = 4
MOST_FRAMES = 100
MOST_EXCEPTIONS = 30
MEMBERS_SHOWN = 5

_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def traceback_of(error: BaseException) -> str:
    """The exception with its causes, beginning in the step's own code. Never raises, whatever the exception does."""
    try:
        text = _formatted(error) if _is_small(error) else _formatted_plainly(error)
    except BaseException:  # raised by the exception's own code, which may raise anything
        text = _formatted_plainly(error)
    return bounded(text)


def place_of(run: LiveRun) -> str | None:
    """Where the step of this run is just now, asked from another thread; None if that cannot be told."""
    try:
        frames = list(_frames_of(run))
        if not frames:
            return None
        lines = traceback.StackSummary.extract(iter(frames[-MOST_FRAMES:]), lookup_lines=True).format()
    except Exception:  # the step runs on meanwhile, and may end in the midst of this
        return None
    return bounded("The step was here when it was given up (most recent call last):\n" + "".join(lines))


def bounded(text: str, limit: int = TRACEBACK_LIMIT) -> str:
    """The text as UTF-8 of at most `limit` bytes: its beginning and its end, and how much is left out between them."""
    encoded = storable(text).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    note = f"\n... {len(encoded) - limit} bytes left out ...\n"
    room = limit - len(note) - 16  # the number may have more digits, once the note itself takes some room
    head = encoded[: room // HEAD_SHARE].decode("utf-8", "ignore")
    tail = encoded[len(encoded) - (room - room // HEAD_SHARE) :].decode("utf-8", "ignore")
    return f"{head}{note}{tail}"


def _formatted(error: BaseException) -> str:
    """As Python itself shows it."""
    trace = without_engine(error.__traceback__)
    limit = -MOST_FRAMES if _depth(trace) > MOST_FRAMES else None
    shown = traceback.TracebackException(type(error), error, trace, limit=limit, compact=True)
    return "".join(shown.format())


def _formatted_plainly(error: BaseException) -> str:
    """The same with nothing asked of the exceptions but their text."""
    parts = []
    for link, one in reversed(_chain(error)):
        try:
            frames = "".join(traceback.format_tb(without_engine(one.__traceback__), -MOST_FRAMES))
        except Exception:
            frames = ""
        parts.append(f"Traceback (most recent call last):\n{frames}{text_of(one)}\n{_members(one)}{link}")
    return "".join(parts)


def _members(error: BaseException) -> str:
    """The first exceptions of a group."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    first = error.exceptions[:MEMBERS_SHOWN]
    more = len(error.exceptions) - len(first)
    return "".join(f"  | {text_of(one)}\n" for one in first) + (f"  | and {more} more\n" if more else "")


def _is_small(error: BaseException) -> bool:
    """Are there few enough exceptions, causes and members of groups together, to be formatted all of them?"""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        if len(seen) + len(members) > MOST_EXCEPTIONS:
            return False
        todo += [one.__cause__, one.__context__, *members]
    return True


def text_of(error: BaseException) -> str:
    """Its class and what it says, on as many lines as it likes."""
    try:
        text = str(error)
    except BaseException:  # whatever it is, it is no reason to fall over
        text = "<its text cannot be made>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(error: BaseException) -> list[tuple[str, BaseException]]:
    """The exception and those that it came of, each once, with what leads from it to the one before; bounded."""
    chain: list[tuple[str, BaseException]] = []
    seen: set[int] = set()
    link, one = "", error
    while len(chain) < MOST_EXCEPTIONS and id(one) not in seen:
        seen.add(id(one))
        chain.append((link, one))
        if one.__cause__ is not None:
            link, one = _CAUSE, one.__cause__
        elif one.__context__ is not None and not one.__suppress_context__:
            link, one = _CONTEXT, one.__context__
        else:
            break
    return chain


def without_engine(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame that is not the engine's; all of it if there is no other."""
    first = trace
    while first is not None and _is_engine(first.tb_frame):
        first = first.tb_next
    return first or trace


def _is_engine(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_ENGINE)


def _depth(trace: TracebackType | None) -> int:
    depth = 0
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    return depth


def _frames_of(run: LiveRun) -> Iterator[tuple[FrameType, int]]:
    """The frames of its step, outermost first: on a thread, or suspended where its coroutine awaits something."""
    thread = sys._current_frames().get(run.thread or 0)  # noqa: SLF001 - the documented way to see another thread
    stack: list[FrameType] = []
    while thread is not None:
        stack.append(thread)
        thread = thread.f_back
    stack.reverse()
    if run.task is not None:
        awaiting = list(_awaiting(run.task.get_coro()))
        if awaiting and awaiting[0] not in stack:  # on the stack if it blocks the event loop itself
            stack = awaiting
    while stack and not _is_engine(stack[0]):
        del stack[0]  # how the thread came to the engine
    while stack and _is_engine(stack[0]):
        del stack[0]
    return ((frame, frame.f_lineno) for frame in stack)


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    for _ in range(MOST_FRAMES):
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
