"""What a failure is called, and how one process tells another of it."""

from __future__ import annotations

import errno

from holdfast_images.archive.lines import Failed
from holdfast_images.archive.reasons import Reason
from holdfast_images.errors import (
    ChecksumMismatch,
    DeviceLost,
    ImageBusy,
    ImageError,
    ImageRefused,
    NoSpace,
    Permanent,
    TryAgain,
)

_REFUSED_BY_KERNEL = {
    errno.ENAMETOOLONG: (Reason.NAME_TOO_LONG, "the file system cannot keep so long a name"),
    errno.EFBIG: (Reason.FILE_TOO_LARGE, "the file is larger than a file may be"),
    errno.EMLINK: (Reason.TOO_MANY_LINKS, "the file system cannot count so many names of one file"),
}
_ERRORS: dict[str, type[ImageError]] = {
    error.__name__: error for error in (ChecksumMismatch, DeviceLost, ImageBusy, NoSpace, Permanent, TryAgain)
}


def meaning(error: OSError, name: str, offset: int | None) -> ImageError:
    """What a failed system call means for the image, of which the entry with this name was written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"no space left for {name}: {error.strerror}",
            hint="make the device or the pool larger, or free some inodes",
        )
    if error.errno in _REFUSED_BY_KERNEL:
        code, detail = _REFUSED_BY_KERNEL[error.errno]
        return ImageRefused(code, detail, entry=name, offset=offset)
    return TryAgain(f"{name} could not be written: {error.strerror}", hint="look at the kernel's log for disk errors")


def told(error: ImageError) -> Failed:
    """The line that tells of it."""
    if isinstance(error, ImageRefused):
        return Failed(
            error=ImageRefused.__name__,
            message=error.detail,
            hint=error.hint,
            code=str(error.code),
            entry=error.entry,
            offset=error.offset,
        )
    return Failed(error=type(error).__name__, message=str(error), hint=error.hint)


def heard(failed: Failed) -> ImageError:
    """The error that such a line tells of."""
    if failed.error == ImageRefused.__name__:
        return ImageRefused(failed.code, failed.message, entry=failed.entry, offset=failed.offset, hint=failed.hint)
    return _ERRORS.get(failed.error, TryAgain)(failed.message, hint=failed.hint)
