"""From a place and its settings to the parts that steps are done with. Opens nothing of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast_images.bare_python import import_paths
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.catalog.rows import HostClaim
from holdfast_images.data_owner import Owner, check_owner, claim_data, forget_mark, is_marked, machine_id, read_owner
from holdfast_images.devices.directory import DirectoryDevices, content_path
from holdfast_images.devices.protocol import Devices
from holdfast_images.errors import ForeignData, InvalidName
from holdfast_images.flows.workshop import Timeouts, Workshop
from holdfast_images.settings import HOST_NAME, Backend, Settings, data_directory


@contextmanager
def opened_workshop(place: str | Path, settings: Settings, *, read_only: bool = False) -> Iterator[Workshop]:
    """What steps are done with, at the place of an engine that has been opened."""
    with open_catalog(place, settings) as catalog:
        own_data(place, settings, catalog, read_only=read_only)
        with closing(open_devices(place, settings)) as devices:
            yield workshop_of(place, settings, catalog, devices)


def workshop_of(place: str | Path, settings: Settings, catalog: Catalog, devices: Devices) -> Workshop:
    """The workshop with these parts, and the rest as the settings say."""
    import_paths()  # a missing package would be told only after the download
    return Workshop(
        catalog=catalog,
        devices=devices,
        images=data_of(place, settings) / "images",
        limits=settings.limits,
        source=settings.source,
        timeouts=Timeouts(download=settings.download_timeout, extract=settings.extract_timeout),
        device_size=settings.device_size,
        connections=settings.connections,
        host=_host(place, settings),
    )


def open_catalog(place: str | Path, settings: Settings) -> Catalog:
    """The catalog in the engine's database: that of this host, if hosts share it."""
    return Catalog.open(place, host=_host(place, settings) or None)


def own_data(place: str | Path, settings: Settings, catalog: Catalog, *, read_only: bool = False) -> None:
    """Raise ForeignData if the data directory is another state's, or the name of this host another machine's.

    Both are marked as this one's, unless they are only read.
    """
    data, own = data_of(place, settings), owner_of_data(place, settings, catalog)
    check_owner(data, own)
    if not own.host:
        if not read_only:
            claim_data(data, own)
        return
    before = read_owner(data)
    known = catalog.get_host()
    _refuse_other_machine(known, own, before)
    if read_only:
        return
    marked = claim_data(data, own)
    if known is None or known.directory != own.directory:
        claim = HostClaim(host=own.host, machine=own.machine, data_id=marked.id, directory=own.directory)
        try:
            _refuse_other_machine((catalog.claim_host if known is None else catalog.adopt_host)(claim), own, marked)
        except ForeignData:
            if before is None:
                forget_mark(data, marked)  # another machine was faster to take the name
            raise


def owner_of_data(place: str | Path, settings: Settings, catalog: Catalog) -> Owner:
    """Who asks for the data directory."""
    host = _host(place, settings)
    return Owner(
        store=catalog.store_id(),
        database="" if host else os.path.realpath(database_path(place)),
        directory=os.path.realpath(data_of(place, settings)),
        host=host,
        machine=machine_id() if host else "",
    )


def adopt_data(place: str | Path, settings: Settings, catalog: Catalog) -> tuple[Owner, HostClaim | None]:
    """Make the data directory, and the name of this host, this machine's, whoever had them; who had the name.

    For an operator who knows that nobody else uses them any more.
    """
    own = owner_of_data(place, settings, catalog)
    before = catalog.get_host() if own.host else None
    marked = claim_data(data_of(place, settings), own, by_order=True)
    if own.host:
        catalog.adopt_host(HostClaim(host=own.host, machine=own.machine, data_id=marked.id, directory=own.directory))
    return marked, before


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


def open_devices(place: str | Path, settings: Settings) -> Devices:
    """The backend of the settings, where nothing hangs that a crash has left. Raises PoolUnusable if it has no pool."""
    data = data_of(place, settings)
    if settings.backend is Backend.DEVICEMAPPER:
        from holdfast_images.devices.devicemapper import DeviceMapperDevices  # noqa: PLC0415 - seldom asked for
        from holdfast_images.devices.thin_pool import ThinPool  # noqa: PLC0415 - as above

        devices = DeviceMapperDevices(data, ThinPool.open(data), read_origins=settings.read_origins)
        devices.showing.resume_all()
        return devices
    return DirectoryDevices(data)


def device_path(place: str | Path, settings: Settings, name: str) -> Path:
    """Where a device or snapshot of this name is. Needs no pool: a list of what is recorded must always be had."""
    if settings.backend is Backend.DEVICEMAPPER:
        from holdfast_images.devices.dm_control import NODES  # noqa: PLC0415 - seldom asked for

        return NODES / name
    return content_path(data_of(place, settings), name)


def _host(place: str | Path, settings: Settings) -> str:
    if not is_postgres(place):
        return ""
    name = settings.host or os.uname().nodename
    if not HOST_NAME.fullmatch(name):
        raise InvalidName(
            f"this host is called {name!r}, which cannot be part of the names of its flows",
            hint="give it another name here: HOLDFAST_HOST, or host in the settings file;"
            " 1 to 64 letters, digits, '.', '_' and '-'",
        )
    return name


def data_of(place: str | Path, settings: Settings) -> Path:
    """Where this host's files and devices are."""
    return data_directory(settings, None if is_postgres(place) else database_path(place))
