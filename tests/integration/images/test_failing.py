"""From what a job keeps of its end back to the error it was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Abort, Flow, HoldfastError, Run
from holdfast.errors import JobFailed
from holdfast_images import ImageManager
from holdfast_images.errors import ImageRefused, NoSpace, ObjectNotFound, Permanent, SourceUnavailable

NOW = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def images(tmp_path: Path) -> Iterator[ImageManager]:
    with ImageManager.open(tmp_path) as images:
        yield images


def ended_by(images: ImageManager, error: Exception) -> Exception:
    """What is said of a job that ended by this error."""

    def fail(run: Run[None, None]) -> None:
        raise Abort(error) if isinstance(error, Permanent) else error

    flow: Flow[Any, Any] = Flow("fails", request=type(None), response=type(None)).start("try", fail)
    images.engine.register(flow)
    job_id = images.engine.submit(flow, None)
    with images.engine.worker(concurrency=1):
        images.engine.wait(job_id)
    with pytest.raises(HoldfastError) as raised:
        images.wait(job_id)
    return raised.value


def test_an_error_comes_back_with_its_class_its_message_and_its_hint(images: ImageManager) -> None:
    error = ended_by(images, NoSpace("no space: (here)", hint="free some (a lot)"))

    assert isinstance(error, NoSpace)
    assert (str(error), error.hint) == ("no space: (here)", "free some (a lot)")


def test_an_error_without_a_hint_comes_back_without_one(images: ImageManager) -> None:
    error = ended_by(images, ObjectNotFound("there is no s3://b/k"))

    assert isinstance(error, ObjectNotFound)
    assert (str(error), error.hint) == ("there is no s3://b/k", None)


@pytest.mark.parametrize("entry, offset", [("rootfs/etc/x y", 512), ("", None), ("a (byte 7): b", 9)])
def test_a_refusal_comes_back_with_code_entry_and_offset(images: ImageManager, entry: str, offset: int | None) -> None:
    refused = ImageRefused("PATH_TRAVERSAL", "it has '..': no", entry=entry, offset=offset, hint="inspect it")
    error = ended_by(images, refused)

    assert isinstance(error, ImageRefused)
    assert (error.code, error.entry, error.offset, error.hint) == ("PATH_TRAVERSAL", entry, offset, "inspect it")
    assert str(error) == str(refused)


def test_a_refusal_that_the_catalog_does_not_know_comes_back_too(images: ImageManager) -> None:
    error = ended_by(images, ImageRefused("LAYOUT_NO_ROOTFS", "nothing there", entry="rootfs"))

    assert isinstance(error, ImageRefused)
    assert error.facts == {"code": "LAYOUT_NO_ROOTFS", "entry": "rootfs", "offset": None, "detail": "nothing there"}


def test_what_did_not_pass_after_all_tries_keeps_its_class(images: ImageManager) -> None:
    error = ended_by(images, SourceUnavailable("https://example: refused"))

    assert isinstance(error, SourceUnavailable)
    assert "https://example: refused (tried 1 times)" in str(error)
    assert "holdfast job show" in (error.hint or "")


def test_what_is_no_error_of_ours_is_a_failed_job(images: ImageManager) -> None:
    assert isinstance(ended_by(images, ValueError("a bug")), JobFailed)
