"""A traceback is bounded text, whatever the exception is and does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.logs import JsonFormatter, TextFormatter
from holdfast.worker.run import TRACEBACK_LIMIT, LiveRun, bounded, place_of, traceback_of


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be printed")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class BadNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise KeyError("no notes")


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def causing_itself() -> BaseException:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def odd_syntax_error() -> BaseException:
    error = SyntaxError("odd")
    cast(Any, error).text, cast(Any, error).lineno, cast(Any, error).offset = 7, "x", object()
    error.filename = "nowhere.py"
    return error


def long_chain() -> BaseException:
    error: BaseException = ValueError("the root")
    for number in range(5000):
        following = RuntimeError(f"number {number}")
        following.__cause__ = error
        error = following
    return error


def deep() -> BaseException:
    def down(left: int) -> None:
        if left:
            up(left - 1)
        raise ValueError("at the bottom")

    def up(left: int) -> None:
        down(left)

    try:
        down(400)
    except ValueError as error:
        return error
    raise AssertionError("unreachable")


ODD: dict[str, Callable[[], BaseException]] = {
    "unprintable": Unprintable,
    "exits": Exits,
    "endless": Endless,
    "bad notes": BadNotes,
    "causing itself": causing_itself,
    "odd syntax error": odd_syntax_error,
    "half characters": lambda: ValueError("\udc80\ud800"),
    "nul": lambda: ValueError("a\0b"),
    "huge": lambda: ValueError("x" * 5_000_000),
    "wide": lambda: ValueError("ü" * 100_000),
    "long chain": long_chain,
    "deep": deep,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])]),
    "large group": lambda: ExceptionGroup("many", [ValueError(str(number)) for number in range(20_000)]),
    "exit": lambda: SystemExit(4),
    "cancelled": asyncio.CancelledError,
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
def test_an_odd_exception_gives_bounded_text(make: Callable[[], BaseException]) -> None:
    error = raised(make())
    text = traceback_of(error)

    assert len(text.encode()) <= TRACEBACK_LIMIT
    assert type(error).__name__ in text
    assert "test_tracebacks.py" in text


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_an_odd_exception_does_not_cost_the_log_line(
    make: Callable[[], BaseException], formatter: logging.Formatter
) -> None:
    error = raised(make())
    failure = (type(error), error, error.__traceback__)
    line = formatter.format(logging.LogRecord("holdfast.job", logging.ERROR, "", 0, "it failed", (), failure))

    assert "it failed" in line
    assert line.encode()


def test_causes_are_told_and_values_are_not() -> None:
    def connect() -> None:
        password = "tell-nobody"
        raise ConnectionError(f"refused after {len(password)} characters")

    def work() -> None:
        try:
            connect()
        except ConnectionError as error:
            raise ValueError("no answer") from error

    with pytest.raises(ValueError, match="no answer") as caught:
        work()
    text = traceback_of(caught.value)

    assert text.index("ConnectionError: refused") < text.index("direct cause") < text.index("ValueError: no answer")
    assert "in connect" in text
    assert text.count("tell-nobody") == text.count('password = "tell-nobody"')  # a line of code at most, no value


def test_members_of_a_group_are_told() -> None:
    text = traceback_of(raised(ExceptionGroup("several", [ValueError("one"), KeyError("two")])))

    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text


def test_what_is_cut_is_the_middle() -> None:
    text = bounded("begin" + "x" * 100_000 + "the end")

    assert text.startswith("begin")
    assert text.endswith("the end")
    assert "bytes left out" in text
    assert len(text.encode()) <= TRACEBACK_LIMIT


@pytest.fixture
def stuck() -> Iterator[threading.Thread]:
    let_go = threading.Event()
    thread = threading.Thread(target=let_go.wait, daemon=True)
    thread.start()
    yield thread
    let_go.set()
    thread.join()


def test_of_a_thread_that_runs_no_step_there_is_no_place(stuck: threading.Thread) -> None:
    for ident in (stuck.ident, 12345, None):
        assert place_of(cast(LiveRun, SimpleNamespace(thread=ident, task=None))) is None
