"""What the parent makes of the lines of a child: it believes their form, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from holdfast_images.archive.entry import Extracted
from holdfast_images.archive.protocol import DoneMessage, FailedMessage, Line, Progress
from holdfast_images.archive.sandbox import LINE_BYTES, SandboxProcess
from holdfast_images.errors import DeviceLost, ImageBusy, ImageError, ImageRefused, NoSpace, TryAgain


def child() -> tuple[SandboxProcess, list[tuple[int, int, int]]]:
    heard: list[tuple[int, int, int]] = []
    return SandboxProcess(timeout=None, check=None, on_progress=lambda *told: heard.append(told)), heard


def line(told: Line) -> bytes:
    return msgspec.json.encode(told) + b"\n"


def test_lines_are_heard_however_they_are_cut() -> None:
    listener, heard = child()
    content = (
        line(Progress(1, 2, 3)) + line(Progress(4, 5, 6)) + line(DoneMessage(Extracted(file_count=1, total_bytes=2)))
    )
    for position in range(0, len(content), 7):
        listener._take(content[position : position + 7])

    assert heard == [(1, 2, 3), (4, 5, 6)]
    assert listener._conclude(0) == DoneMessage(Extracted(file_count=1, total_bytes=2))


def test_what_is_no_line_of_ours_is_a_note_for_the_error() -> None:
    listener, _ = child()
    listener._take(b"Traceback\n\xff\x1b[31m\n{}\n" + b'{"type": "extracted", "extracted": 1}\n')

    with pytest.raises(TryAgain, match="with status 3: Traceback"):
        listener._conclude(3)


def test_an_end_that_was_told_counts_only_if_the_process_ended_well() -> None:
    listener, _ = child()
    listener._take(line(DoneMessage(Extracted(file_count=1, total_bytes=2))))

    with pytest.raises(TryAgain, match="SIGSEGV"):
        listener._conclude(-11)


def test_a_process_that_says_nothing_has_failed() -> None:
    with pytest.raises(TryAgain):
        child()[0]._conclude(0)


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    listener, _ = child()

    listener._take(b"x" * LINE_BYTES)

    with pytest.raises(TryAgain):
        listener._take(b"x")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("NoSpace", NoSpace),
        ("ImageBusy", ImageBusy),
        ("DeviceLost", DeviceLost),
        ("TryAgain", TryAgain),
        ("SystemExit", TryAgain),
    ],
)
def test_errors_come_out_as_they_went_in(name: str, expected: type[ImageError]) -> None:
    listener, _ = child()
    listener._take(line(FailedMessage(error=name, message="why", hint="what to do")))

    with pytest.raises(expected, match="why") as raised:
        listener._conclude(0)
    assert type(raised.value) is expected
    assert raised.value.hint == "what to do"


def test_a_refusal_keeps_its_code_its_entry_and_its_place() -> None:
    listener, _ = child()
    listener._take(line(FailedMessage(error="ImageRefused", message="why", code="SETUID", entry="bin/su", offset=512)))

    with pytest.raises(ImageRefused) as raised:
        listener._conclude(0)
    assert (raised.value.code, raised.value.entry, raised.value.offset) == ("SETUID", "bin/su", 512)
