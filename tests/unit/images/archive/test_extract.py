"""What a failed system call means for an image."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast_images.archive.entry import Entry, EntryKind
from holdfast_images.archive.extract import _failure
from holdfast_images.errors import ImageRefused, NoSpace, TryAgain

ENTRY = Entry(b"a\x1b", EntryKind.FILE, 0o644, 0, 0, 0, 0, 0, 1024)


@pytest.mark.parametrize(
    "number, expected",
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, ImageRefused),
        (errno.EMLINK, ImageRefused),
        (errno.ENAMETOOLONG, ImageRefused),
        (errno.EIO, TryAgain),
        (errno.EMFILE, TryAgain),
        (errno.ENOMEM, TryAgain),
        (errno.EROFS, TryAgain),
    ],
)
def test_each_failure_is_of_the_class_that_says_what_to_do(number: int, expected: type[Exception]) -> None:
    failure = _failure(OSError(number, os.strerror(number)), ENTRY)

    assert type(failure) is expected
    assert "a\\x1b" in str(failure)
    assert str(failure).isprintable()
