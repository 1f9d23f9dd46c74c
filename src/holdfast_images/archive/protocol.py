"""What a parent and the child that reads an archive for it say to each other: a job, and lines of JSON."""

from __future__ import annotations

import errno

import msgspec

from holdfast_images.archive.entry import Extracted, InspectionReport, Limits, Policy, Reason
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


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent wants, in the child's one argument. Descriptors are the child's own, by inheritance."""

    parent: int
    archive: int
    target: int
    """Where to extract to; to inspect, a directory that was removed."""
    spool: int
    """An unnamed file for what has to be decompressed before it can be read in the order it needs."""
    writing: bool
    policy: Policy = Policy.STRICT
    limits: Limits = Limits()
    keep_setuid: bool = False
    processes: int = 1
    """Two, if a second one is to write, too."""
    checksum: str = ""
    """SHA-256 of the archive, to extract: of no other is anything believed."""
    alarm: float | None = None
    """Seconds until the child ends itself, in case the parent cannot do it."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Some more has been done."""

    done: int
    total: int
    entries: int


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """The end, of an inspection."""

    report: InspectionReport


class DoneMessage(msgspec.Struct, frozen=True, tag="extracted"):
    """The end, of an extraction that may be believed."""

    extracted: Extracted


class FailedMessage(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The end, of anything else."""

    error: str
    message: str
    hint: str | None = None
    code: str = ""
    entry: str = ""
    offset: int | None = None


Line = Progress | Inspected | DoneMessage | FailedMessage


# --- What a failure is called, and how one process tells another of it ----------------------------------

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


def told(error: ImageError) -> FailedMessage:
    """The line that tells of it."""
    if isinstance(error, ImageRefused):
        return FailedMessage(
            error=ImageRefused.__name__,
            message=error.detail,
            hint=error.hint,
            code=str(error.code),
            entry=error.entry,
            offset=error.offset,
        )
    return FailedMessage(error=type(error).__name__, message=str(error), hint=error.hint)


def heard(failed: FailedMessage) -> ImageError:
    """The error that such a line tells of."""
    if failed.error == ImageRefused.__name__:
        return ImageRefused(failed.code, failed.message, entry=failed.entry, offset=failed.offset, hint=failed.hint)
    return _ERRORS.get(failed.error, TryAgain)(failed.message, hint=failed.hint)
