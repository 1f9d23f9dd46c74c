"""Every error of the image manager. The class tells whether trying again can help.

ImageError (HoldfastError)
├── InvalidName                 a name, key, digest or URL that cannot be; nothing was changed
├── Interrupted                 whoever waited was told to stop; the job goes on at the next call
├── TryAgain                    passing: the step's retry policy decides
│   ├── SourceUnavailable         network, server, or a range that came back wrong
│   ├── SourceChanged             the object is not the one the download began with
│   ├── ImageBusy                 somebody else holds the image or its device
│   ├── DeviceBusy                the kernel or another process has it open
│   └── CatalogUnavailable        the database is locked, full or out of reach at the moment
└── Permanent                   trying again cannot help: the job is aborted
    ├── ImageRefused              the content breaks a rule; says code, entry and offset
    ├── ChecksumMismatch          the content is not the one that was asked for
    ├── ObjectNotFound
    ├── AccessDenied
    ├── SourceUntrusted           the server cannot prove who it is, or leads to where nothing may be read
    ├── NoSpace                   disk, inodes or pool
    ├── PoolUnusable              the pool of devices needs an operator
    ├── ExtractionTimedOut
    ├── DeviceLost                what was recorded is not there any more
    ├── CatalogConflict           the database refuses a row: it would contradict another one
    ├── CatalogUnusable           the database is newer than this program, damaged, or somebody else's
    └── UnknownImage              no image or snapshot of this name
"""

from __future__ import annotations

from holdfast import HoldfastError


class ImageError(HoldfastError):
    """Base of the image manager's errors."""


class InvalidName(ImageError):
    """A name, key, digest or URL is not one: the call is wrong and changed nothing."""


class Interrupted(ImageError):
    """Waiting was ended by a signal; the job is not finished and goes on at the next call."""


class TryAgain(ImageError):
    """It may work next time."""


class SourceUnavailable(TryAgain):
    """The network or the server failed, or the answer was not what was asked for."""


class SourceChanged(TryAgain):
    """The object was replaced while it was being read."""


class ImageBusy(TryAgain):
    """Another process works on this image."""


class DeviceBusy(TryAgain):
    """The device is open or mounted elsewhere."""


class CatalogUnavailable(TryAgain):
    """The database cannot be used at the moment; nothing was changed."""


class Permanent(ImageError):
    """It will not work next time either."""


class ImageRefused(Permanent):
    """The image breaks a rule. `code` is stable; `entry` and `offset` say where."""

    def __init__(
        self, code: str, detail: str, *, entry: str = "", offset: int | None = None, hint: str | None = None
    ) -> None:
        where = f" at {entry}" if entry else ""
        where += f" (byte {offset})" if offset is not None else ""
        super().__init__(f"{code}{where}: {detail}", hint=hint)
        self.code = code
        self.detail = detail
        self.entry = entry
        self.offset = offset

    @property
    def facts(self) -> dict[str, object]:
        """For those who read errors by program."""
        return {"code": self.code, "entry": self.entry, "offset": self.offset}


class ChecksumMismatch(Permanent):
    """The digest is not the expected one."""


class ObjectNotFound(Permanent):
    """There is no such object."""


class AccessDenied(Permanent):
    """The server refuses to give the object to these credentials."""


class SourceUntrusted(Permanent):
    """The server's certificate does not hold, or it redirects to where nothing may be read from."""


class NoSpace(Permanent):
    """A disk or a pool is full."""


class PoolUnusable(Permanent):
    """The pool is missing, read-only, failed, or not the one that was recorded."""


class ExtractionTimedOut(Permanent):
    """Unpacking took longer than allowed and was killed."""


class DeviceLost(Permanent):
    """A device that the catalog knows is not there, or holds something else."""


class CatalogConflict(Permanent):
    """A row would contradict another one; nothing was changed."""


class CatalogUnusable(Permanent):
    """The database cannot be worked with until somebody has looked at it."""


class UnknownImage(Permanent):
    """The catalog has no image or snapshot of this name."""
