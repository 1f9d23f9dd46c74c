"""What others have written (servers, archives, users) reaches a terminal or a log with nothing in it that steers it."""

from __future__ import annotations

import logging

import pytest

from holdfast.cli.command import ExitCode, tell
from holdfast.logs import JsonFormatter, TextFormatter
from holdfast_images.errors import ImageError, printable

HARMFUL = "a\x1b[2J\x07\x9b31m\x85\u2028\u202eb"


def test_an_error_is_told_without_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tell("JobFailed", f"{HARMFUL}\nsecond line", HARMFUL, ExitCode.FAILURE, as_json=False)
    told = capsys.readouterr().err

    assert all(line.isprintable() for line in told.split("\n"))
    assert "\nsecond line\n" in told


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_log_line_has_nothing_that_steers_a_terminal(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "said %s", (HARMFUL,), None)
    line = formatter.format(record)

    assert "\x1b" not in line
    assert "\x07" not in line
    assert "\x9b" not in line or isinstance(formatter, JsonFormatter)


def test_an_error_of_images_is_one_printable_line() -> None:
    error = ImageError(f"{HARMFUL}\nforged", hint=HARMFUL)

    assert str(error).isprintable()
    assert (error.hint or "").isprintable()
    assert printable(str(error)) == str(error)
