"""This host's part of a store: its catalog, its data directory and its devices, each opened when it is first used."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path

import msgspec

from holdfast.errors import StoreError, StoreReadOnly
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.database import is_made
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.catalog.rows import HostClaim, Image, Snapshot, UnpackedImage
from holdfast_images.data_owner import Owner, check_owner, claim_data, forget_mark, is_marked, machine_id, read_owner
from holdfast_images.devices.directory import DirectoryDevices, content_path
from holdfast_images.devices.protocol import Devices
from holdfast_images.errors import ForeignData, InvalidName
from holdfast_images.flows.workshop import Timeouts, Workshop
from holdfast_images.settings import HOST_NAME, Backend, Settings, data_directory


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a data directory is: who asks for it, who has marked it, and who has the name of this host."""

    asking: Owner
    marked: Owner | None
    known: HostClaim | None


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """How a data directory is marked now, and who had the name of this host before."""

    marked: Owner
    before: HostClaim | None


class LocalHost(Workshop):
    """What the steps work with at one place under one set of settings. Opens nothing of the engine.

    The place is parsed once. Nothing is opened before it is used: flows that are only drawn, a pool that is only
    asked for its room and an archive that is only inspected leave no trace.
    """

    def __init__(self, place: str | Path, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self.limits = settings.limits
        self.source = settings.source
        self.timeouts = Timeouts(download=settings.download_timeout, extract=settings.extract_timeout)
        self.device_size = settings.device_size
        self.connections = settings.connections
        self._opened = ExitStack()
        self._is_claimed = False

    # --- where it is ---

    @cached_property
    def database(self) -> Path | None:
        """The database file; None if the store is on a server, which hosts share."""
        return None if is_postgres(self.place) else database_path(self.place)

    @cached_property
    def host(self) -> str:  # type: ignore[override] # read-only here
        """The name of this host in a store that hosts share; empty in one that has a single host."""
        if self.database is not None:
            return ""
        name = self.settings.host or os.uname().nodename
        if not HOST_NAME.fullmatch(name):
            raise InvalidName(
                f"this host is called {name!r}, which cannot be part of the names of its flows",
                hint="give it another name here: HOLDFAST_HOST, or host in the settings file;"
                " 1 to 64 letters, digits, '.', '_' and '-'",
            )
        return name

    @cached_property
    def data(self) -> Path:
        """The data directory: files and devices."""
        return data_directory(self.settings, self.database)

    @cached_property
    def images(self) -> Path:  # type: ignore[override] # as above
        """The directory of the downloaded files."""
        return self.data / "images"

    def path_of(self, name: str) -> Path:
        """Where a device or snapshot of this name is. Needs no pool and no root: what is recorded can be listed."""
        if self.settings.backend is Backend.DEVICEMAPPER:
            from holdfast_images.devices.dm_control import NODES  # noqa: PLC0415 - seldom asked for

            return NODES / name
        return content_path(self.data, name)

    def refuse_missing(self) -> None:
        """Raise StoreError if the database is a file that is not there: looking makes none."""
        if self.database is None:
            return
        try:
            is_there = self.database.exists()
        except PermissionError as error:
            raise StoreReadOnly(
                f"cannot look into {self.database.parent}: {error.strerror}",
                hint="fix its owner or mode, or choose another --state",
            ) from error
        if not is_there:
            raise StoreError(
                f"there is no Holdfast database at {self.database}",
                hint="point --state or HOLDFAST_STATE to it; worker and submit make a new one",
            )

    # --- rows, with the paths that they have here, whatever was recorded elsewhere ---

    def image_here(self, row: Image) -> Image:
        """An image with the path of its file."""
        return msgspec.structs.replace(row, local_path=str(self.recorded_file(row)))

    def device_here(self, row: UnpackedImage) -> UnpackedImage:
        """A device with its path."""
        return msgspec.structs.replace(row, device_path=str(self.path_of(row.device_name)))

    def snapshot_here(self, row: Snapshot) -> Snapshot:
        """A snapshot with its path."""
        return msgspec.structs.replace(row, device_path=str(self.path_of(row.snapshot_name)))

    # --- its parts ---

    @property
    def has_catalog(self) -> bool:
        """Was an image ever processed at this place? Makes nothing."""
        return is_made(self.place)

    @cached_property
    def catalog(self) -> Catalog:  # type: ignore[override] # as above
        """The catalog in the engine's database: that of this host, if hosts share it."""
        return self._opened.enter_context(Catalog.open(self.place, host=self.host or None))

    @cached_property
    def devices(self) -> Devices:  # type: ignore[override] # as above
        """The backend of the settings. Raises PoolUnusable if it has no pool, ForeignData if it is another state's."""
        self.check_owner()
        return self._opened.enter_context(closing(open_devices(self.data, self.settings)))

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()

    # --- whose it is ---

    def check_owner(self) -> None:
        """Raise ForeignData if the data directory is another state's, or the name of this host another machine's."""
        own = self.owner()
        check_owner(self.data, own)
        if own.host:
            _refuse_other_machine(self.catalog.get_host(), own, read_owner(self.data))

    def claim(self) -> None:
        """Mark the data directory and the name of this host as this one's; ForeignData if they are another's.

        Crash: marked or not; what is not marked belongs to whoever asks next.
        """
        if self._is_claimed:
            return
        from holdfast_images.bare_python import import_paths  # noqa: PLC0415 - what is finished is found without

        import_paths()  # a missing package would be told only after the download
        self.check_owner()
        before, own = read_owner(self.data), self.owner()
        known = self.catalog.get_host() if own.host else None
        marked = claim_data(self.data, own)
        if own.host and (known is None or known.directory != own.directory):
            claim = HostClaim(host=own.host, machine=own.machine, data_id=marked.id, directory=own.directory)
            try:
                take = self.catalog.claim_host if known is None else self.catalog.adopt_host
                _refuse_other_machine(take(claim), own, marked)
            except ForeignData:
                if before is None:
                    forget_mark(self.data, marked)  # another machine was faster to take the name
                raise
        self._is_claimed = True

    def adopt(self) -> Adoption:
        """Make the data directory, and the name of this host, this machine's, whoever had them.

        For an operator who knows that nobody else uses them any more. Crash: the directory alone, or both.
        """
        own = self.owner()
        before = self.catalog.get_host() if own.host else None
        marked = claim_data(self.data, own, by_order=True)
        if own.host:
            self.catalog.adopt_host(
                HostClaim(host=own.host, machine=own.machine, data_id=marked.id, directory=own.directory)
            )
        return Adoption(marked=marked, before=before)

    def report(self) -> HostReport:
        """Whose the data directory and the name are. Changes nothing."""
        own = self.owner()
        known = self.catalog.get_host() if own.host else None
        return HostReport(asking=own, marked=read_owner(self.data), known=known)

    def owner(self) -> Owner:
        """Who asks for the data directory."""
        return Owner(
            store=self.catalog.store_id(),
            database=os.path.realpath(self.database) if self.database is not None else "",
            directory=os.path.realpath(self.data),
            host=self.host,
            machine=machine_id() if self.host else "",
        )


def open_devices(data: Path, settings: Settings) -> Devices:
    """The backend of the settings, where nothing hangs that a crash has left. Raises PoolUnusable if it has no pool."""
    if settings.backend is Backend.DEVICEMAPPER:
        from holdfast_images.devices.devicemapper import DeviceMapperDevices  # noqa: PLC0415 - seldom asked for
        from holdfast_images.devices.thin_pool import ThinPool  # noqa: PLC0415 - as above

        devices = DeviceMapperDevices(data, ThinPool.open(data), read_origins=settings.read_origins)
        devices.showing.resume_all()
        return devices
    return DirectoryDevices(data)


def _refuse_other_machine(known: HostClaim | None, own: Owner, marked: Owner | None) -> None:
    if known is None:
        return
    if known.machine and own.machine and known.machine != own.machine:
        raise ForeignData(
            f"{own.host} is the name of another machine in this store, whose files and devices are in"
            f" {known.directory} there",
            hint="a command for that host is run there; give this one a name of its own (HOLDFAST_HOST), or,"
            " if it has taken that one's place for good: holdfast host adopt",
        )
    is_copy = known.directory != own.directory and is_marked(known.directory, known.data_id)
    if is_copy or known.data_id != (marked.id if marked is not None else ""):
        raise ForeignData(
            f"host {own.host} has its files and devices in {known.directory}, and {own.directory} is another directory",
            hint=f"use --data {known.directory}; if another machine has that name too, give this one a name of its own"
            " (HOLDFAST_HOST); if that directory is gone for good: holdfast host adopt",
        )
