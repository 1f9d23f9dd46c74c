"""Programs are started in one place, from one list, with a time limit, and told of in the log."""

from __future__ import annotations

import logging

import pytest

from holdfast_images.devices.dm_table import CommandFailed, find, run
from holdfast_images.errors import ImageError


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that is everywhere, as if it were one of ours."""
    monkeypatch.setattr("holdfast_images.devices.dm_table.PROGRAMS", frozenset({"sh", "no-such-program"}))
    return "sh"


def test_only_programs_of_the_list_are_started() -> None:
    with pytest.raises(ImageError, match="no command of this program"):
        run("sh", "-c", "true")
    with pytest.raises(ImageError, match="no command of this program"):
        run("mkfs.ext4", "/dev/a\0b")


def test_what_was_run_is_in_the_log_with_its_duration_and_status(
    program: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast_images.devices")
    answer = run(program, "-c", "echo said; echo wrong >&2; exit 3", accept=(3,))

    assert (answer.status, answer.output, answer.errors) == (3, "said\n", "wrong\n")
    assert "status 3 after" in caplog.text


def test_a_status_that_is_not_expected_is_an_error_with_what_was_said(program: str) -> None:
    with pytest.raises(CommandFailed, match="ended with status 3: wrong"):
        run(program, "-c", "echo wrong >&2; exit 3")


def test_a_program_that_takes_too_long_is_ended(program: str) -> None:
    with pytest.raises(CommandFailed, match="did not end within"):
        run(program, "-c", "exec sleep 60", timeout=0.05)


def test_a_program_that_is_missing_is_named_with_its_package(program: str) -> None:
    with pytest.raises(CommandFailed, match="not installed") as error:
        run("no-such-program")

    assert error.value.hint is not None
    assert find("no-such-program") is None


def test_nothing_of_our_environment_is_passed_on(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    assert "secret" not in run(program, "-c", "set").output
