"""From a request to the image manager: as whom, what may be named as a source, and how much may take long at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from holdfast.web import Call, Principal, Scope
from holdfast_images.errors import ServerBusy, SourceRefused
from holdfast_images.manager import ImageManager
from holdfast_images.model import valid_image_id, valid_snapshot_name
from holdfast_images.settings import Settings
from holdfast_images.source.location import FileObject, HttpObject, Location, S3Object, is_this_host
from holdfast_images.source.prefixes import checked_prefixes, is_below

log = logging.getLogger("holdfast_images.web")

MOST_LONG = 3
"""What takes long runs in so many threads of the server at most; the others are for everybody."""


class ImageAccess:
    """The images of one place, for every request of one application.

    A manager is for one thread, but what it opens is for all threads of a process, as the steps of a worker use it.
    So one manager keeps catalog and devices open, and each request has a light one over them and the server's own
    store, which costs some microseconds; opening them anew would cost each request a look at the whole database.
    """

    def __init__(self, place: str | Path, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self._long = threading.BoundedSemaphore(MOST_LONG)

    def images(self, call: Call) -> ImageManager:
        """The manager of this request, which acts as whoever asks."""
        return call.service(self._opened).acting_as(call.actor, call.engine)

    def _opened(self, _services: object) -> ImageManager:
        opened = ImageManager.open(self.place, self.settings)
        _ = opened.flows
        return opened

    # --- what may be named ---

    @cached_property
    def prefixes(self) -> tuple[str, ...]:
        """Of the sources that callers may name who are no admins; InvalidName if the setting is wrong."""
        return checked_prefixes(self.settings.api_sources)

    def refuse_source(self, principal: Principal | None, location: Location) -> None:
        """Raise SourceRefused unless whoever asks may have this host read that.

        It reads with its own rights, credentials and place in the network: a file is any file that it may read, a URL
        any server that it reaches, itself included. So the objects of the bucket of the settings are for everybody who
        may submit, what lies below `api_sources`, too, and the rest is for admins.
        """
        if principal is not None and principal.scope.covers(Scope.ADMIN):
            return
        if isinstance(location, S3Object) and self.settings.bucket and location.bucket == self.settings.bucket:
            return
        if is_below(location, self.prefixes):
            return
        raise SourceRefused(
            f"{_kind_of(location)} may be named by admins only",
            hint="name an object of the server's bucket by its key; or have its operator add a prefix to api_sources",
        )

    # --- what takes long ---

    @contextmanager
    def long(self, what: str) -> Iterator[None]:
        """For what keeps a thread for long; ServerBusy if too much does already."""
        if not self._long.acquire(blocking=False):
            raise ServerBusy(
                f"{MOST_LONG} long inspections, verifications or collections are under way: no {what} now",
                hint="come again in some seconds",
            )
        try:
            yield
        finally:
            self._long.release()


def image_of(call: Call) -> str:
    """The image that a path names; InvalidName if it cannot name any."""
    return valid_image_id(call.path["image_id"])


def snapshot_of(call: Call) -> str:
    """The snapshot that a path names; InvalidName if it cannot name any."""
    return valid_snapshot_name(call.path["snapshot"])


def note_deed(call: Call, deed: str) -> None:
    """What no job's journal tells goes into the log, with who it was."""
    log.warning("%s: %s", call.actor, deed)


def _kind_of(location: Location) -> str:
    match location:
        case FileObject():
            return "a file of the server"
        case HttpObject():
            host = location.url.partition("://")[2].partition("/")[0].rpartition(":")[0]
            return "a server on this host itself" if is_this_host(host.strip("[]")) else "this URL"
        case S3Object():
            return "another bucket than the server's"
