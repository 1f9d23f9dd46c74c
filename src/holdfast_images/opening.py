"""From a place and its settings to the parts that steps are done with. Opens nothing of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.devices.protocol import Devices
from holdfast_images.flows.workshop import Timeouts, Workshop
from holdfast_images.settings import Backend, Settings, data_directory


@contextmanager
def opened_workshop(place: str | Path, settings: Settings) -> Iterator[Workshop]:
    """What steps are done with, at the place of an engine that has been opened."""
    with open_catalog(place, settings) as catalog, closing(open_devices(place, settings)) as devices:
        yield workshop_of(place, settings, catalog, devices)


def workshop_of(place: str | Path, settings: Settings, catalog: Catalog, devices: Devices) -> Workshop:
    """The workshop with these parts, and the rest as the settings say."""
    return Workshop(
        catalog=catalog,
        devices=devices,
        images=_data(place, settings) / "images",
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


def open_devices(place: str | Path, settings: Settings) -> Devices:
    """The backend of the settings, where nothing hangs that a crash has left. Raises PoolUnusable if it has no pool."""
    data = _data(place, settings)
    if settings.backend is Backend.DEVICEMAPPER:
        from holdfast_images.devices.devicemapper import DeviceMapperDevices  # noqa: PLC0415 - seldom asked for
        from holdfast_images.devices.thin_pool import ThinPool  # noqa: PLC0415 - as above

        devices = DeviceMapperDevices(data, ThinPool.open(data))
        devices.showing.resume_all()
        return devices
    return DirectoryDevices(data)


def _host(place: str | Path, settings: Settings) -> str:
    return (settings.host or os.uname().nodename) if is_postgres(place) else ""


def _data(place: str | Path, settings: Settings) -> Path:
    return data_directory(settings, None if is_postgres(place) else database_path(place))
