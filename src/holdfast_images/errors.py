"""Every error of the image manager. The class tells whether trying again can help.

ImageError (HoldfastError)
├── InvalidName                 a name, key, digest or URL that cannot be; nothing was changed
├── SourceRefused               whoever asks over HTTP may not name this source
├── TooLarge                    more than is read while somebody waits for an answer over HTTP
├── Interrupted                 whoever waited was told to stop; the job goes on at the next call
├── TryAgain                    passing: the step's retry policy decides
│   ├── SourceUnavailable         network, server, or a range that came back wrong
│   ├── SourceChanged             the object is not the one the download began with
│   ├── ImageBusy                 somebody else holds the image or its device
│   ├── DeviceBusy                the kernel or another process has it open
│   ├── NoThreads                 this host starts no more of them
│   ├── ServerBusy                the server has enough under way that takes long
│   └── CatalogUnavailable        the database is locked, full or out of reach at the moment
└── Permanent                   trying again cannot help: the job is aborted
    ├── ImageRefused              the content breaks a rule; says code, entry and offset
    ├── ChecksumMismatch          the content is not the one that was asked for
    ├── ObjectNotFound
    ├── AccessDenied
    ├── SourceUntrusted           the server cannot prove who it is, or leads to where nothing may be read
    ├── NoSpace                   disk, inodes or pool
    ├── PoolUnusable              the pool of devices needs an operator
    ├── ForeignData               the data directory belongs to another state
    ├── NotPermitted              files of the state or its data are another user's
    ├── ExtractionTimedOut
    ├── DeviceLost                what was recorded is not there any more
    │   ├── NotAsSealed             it is there, and something in it was changed
    │   └── SnapshotOverwritten     a snapshot in which there is another file system now; it is kept
    ├── CatalogConflict           the database refuses a row: it would contradict another one
    ├── CatalogUnusable           the database is newer than this program, damaged, or somebody else's
    ├── UnknownImage              no image or snapshot of this name
    │   └── ImageElsewhere          another host of this store has it
    └── NotInstalled              packages that images need are missing here
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast import ErrorRecord


def printable(text: str) -> str:
    """The text as one line in which nothing can steer a terminal or forge a line of a log, whoever has written it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class ImageError(HoldfastError):
    """Base of the image manager's errors."""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        # Servers, archives and databases have their say in messages.
        super().__init__(printable(message), hint=printable(hint) if hint is not None else None)

    @classmethod
    def from_record(cls, record: ErrorRecord) -> ImageError:
        """The error of this class that a job has kept as data."""
        return cls(record.message, hint=record.hint)


class InvalidName(ImageError):
    """A name, key, digest or URL is not one: the call is wrong and changed nothing."""


class SourceRefused(ImageError):
    """Whoever asks may not name this source: see the setting `api_sources`."""


class TooLarge(ImageError):
    """More would have to be read than is read while somebody waits for an answer over HTTP."""


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


class NoThreads(TryAgain):
    """This host starts no more threads or processes: a limit is reached."""


class ServerBusy(TryAgain):
    """The server has as much under way as may take long at once."""


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
        return {"code": self.code, "entry": self.entry, "offset": self.offset, "detail": self.detail}

    @classmethod
    def from_record(cls, record: ErrorRecord) -> ImageRefused:
        """The refusal, with its code and where it was found."""
        code, detail, entry, offset = (record.facts.get(name) for name in ("code", "detail", "entry", "offset"))
        where = offset if isinstance(offset, int) else None
        return cls(str(code), str(detail or record.message), entry=str(entry or ""), offset=where, hint=record.hint)


class ChecksumMismatch(Permanent):
    """The digest is not the expected one."""


class ObjectNotFound(Permanent):
    """There is no such object."""


class AccessDenied(Permanent):
    """The server refuses to give the object to these credentials."""


class SourceUntrusted(Permanent):
    """The server proves not who it is, does not speak TLS, or redirects to where nothing may be read from."""


class NoSpace(Permanent):
    """A disk or a pool is full."""


class PoolUnusable(Permanent):
    """The pool is missing, read-only, failed, or not the one that was recorded."""


class ForeignData(Permanent):
    """The data directory is marked as another state's; nothing in it was touched."""


class NotPermitted(Permanent):
    """A file of the state, or of its data, is one that this user may not read or write."""

    @classmethod
    def told(cls, error: PermissionError) -> NotPermitted:
        """What the kernel has refused, and what to do about it."""
        return cls(
            f"{error.filename or 'a file of the state'}: {error.strerror or error}",
            hint=f"Holdfast runs here as user {os.geteuid()}: run it as the owner of the file, or give it to this user;"
            " a state and its data belong to one user",
        )


class ExtractionTimedOut(Permanent):
    """Unpacking took longer than allowed and was killed."""


class DeviceLost(Permanent):
    """A device that the catalog knows is not there, or holds something else."""


class NotAsSealed(DeviceLost):
    """A device holds something else than was put in it: no snapshot is made of it."""


class SnapshotOverwritten(DeviceLost):
    """Somebody has put another file system, or none, into a snapshot. What was written to it is not removed."""


class CatalogConflict(Permanent):
    """A row would contradict another one; nothing was changed."""


class CatalogUnusable(Permanent):
    """The database cannot be worked with until somebody has looked at it."""


class UnknownImage(Permanent):
    """The catalog has no image or snapshot of this name."""


class ImageElsewhere(UnknownImage):
    """Another host of this store has it: its devices are worked on there only."""

    def __init__(self, message: str = "", *, hosts: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.hosts = tuple(hosts)

    @property
    def facts(self) -> dict[str, object]:
        """For those who read errors by program."""
        return {"hosts": list(self.hosts)}


class NotInstalled(Permanent):
    """The distribution was installed without its extra `images`."""


def error_from(record: ErrorRecord, job_id: str) -> ImageError | None:
    """The exception that a job of ours has kept as data; None if it is not one of the image manager's."""
    kind = next((each for each in _kinds(ImageError) if each.__name__ == record.type), None)
    if kind is None:
        return None
    error = kind.from_record(record)
    if record.tries:
        error.args = (f"{error} (tried {record.tries} times)",)
        error.hint = f"it may work later; what was tried: holdfast job show {job_id}"
    return error


def _kinds(kind: type[ImageError]) -> Iterator[type[ImageError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
