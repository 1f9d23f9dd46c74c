"""The image manager in one object: what programs use, and what the command line is made of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Engine, Flow
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.devices.protocol import Devices
from holdfast_images.errors import InvalidName
from holdfast_images.flows.messages import Judging, ProcessRequest
from holdfast_images.flows.process import QUEUE_LIMITS, all_flows, key_of
from holdfast_images.flows.workshop import Timeouts, Workshop
from holdfast_images.model import image_id_of, valid_image_id, valid_key, valid_sha256, valid_snapshot_name
from holdfast_images.settings import Backend, Settings, data_directory
from holdfast_images.source.locations import HttpObject, Location, S3Object, location_of, origin_of, without_secrets

NO_SETTINGS = Settings()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and what the catalog and the journal call it: nothing in it is secret."""

    location: Location
    s3_key: str
    bucket: str


class Images:
    """The parts put together: the engine's jobs, the catalog, the devices and the flows between them."""

    def __init__(self, engine: Engine, shop: Workshop, settings: Settings) -> None:
        self.engine = engine
        self.shop = shop
        self.settings = settings
        self.catalog = shop.catalog
        self.devices = shop.devices
        self.flows = {flow.name: flow for flow in all_flows(shop)}

    @classmethod
    @contextmanager
    def open(cls, place: str | Path, settings: Settings = NO_SETTINGS, *, actor: str = "client") -> Iterator[Images]:
        """The image manager at a place (a state directory or a URL), which is made if it is not there."""
        with Engine.open(place, actor=actor) as engine, opened_workshop(place, settings) as shop:
            yield cls(engine, shop, settings)

    def flow(self, name: str) -> Flow[Any, Any]:
        """A flow by its plain name, whatever host is in it here."""
        return self.flows[self.shop.flow_name(name)]

    def request(
        self,
        source: Source,
        *,
        image_id: str | None = None,
        snapshot_name: str | None = None,
        sha256: str | None = None,
        verify: bool = False,
    ) -> ProcessRequest:
        """What is asked of process-image; InvalidName if it cannot be meant."""
        return ProcessRequest(
            s3_key=source.s3_key,
            bucket=source.bucket,
            image_id=valid_image_id(image_id) if image_id else image_id_of(*origin_of(source.location)),
            location=source.location,
            snapshot_name=valid_snapshot_name(snapshot_name) if snapshot_name else "",
            judging=Judging(
                policy=self.settings.policy,
                keep_setuid=self.settings.keep_setuid,
                sha256=valid_sha256(sha256) if sha256 else None,
                verify=verify,
            ),
        )

    def submit(self, request: ProcessRequest) -> str:
        """Have an image processed; an equal request that is not finished yet is the same job."""
        return self.engine.submit(self.flow("process-image"), request, key=key_of(request))

    def set_queue_limits(self) -> None:
        """Give the queues their limits, where nobody has."""
        known = {queue.name for queue in self.engine.store.queues() if queue.max_running is not None or queue.limit_by}
        for name, limit in queue_limits(self.shop).items():
            if name not in known:
                self.engine.queue(name, limit=limit)


def source_of(settings: Settings, *, key: str | None = None, url: str | None = None) -> Source:
    """The object that is meant: by its key in the bucket of the settings, or by a URL. InvalidName if it is none.

    The catalog calls an object in that bucket by its key, however it is asked for, and any other by its URL.
    """
    if url is None:
        if not key:
            raise InvalidName("no image is named", hint="give --s3-key and --bucket, or --source")
        if not settings.bucket:
            raise InvalidName("no bucket is given", hint="--bucket, HOLDFAST_BUCKET or S3_BUCKET; or use --source")
        location = location_of(bucket=settings.bucket, key=valid_key(key), settings=settings.source)
        return Source(location=location, s3_key=key, bucket=settings.bucket)
    if key:
        raise InvalidName("both a key and a URL are given", hint="give one of --s3-key and --source")
    location = location_of(url, settings=settings.source)
    if isinstance(location, HttpObject) and location.signature is not None:
        raise InvalidName(
            f"the URL {location} has a signature or token in it, which a job must not keep",
            hint="use s3://bucket/key with credentials, or fetch it and use file:///path",
        )
    plain = without_secrets(location)
    if isinstance(plain, S3Object):
        name = plain.key if plain.bucket == settings.bucket else str(plain)
        return Source(location=plain, s3_key=name, bucket=plain.bucket)
    return Source(location=plain, s3_key=plain.url if isinstance(plain, HttpObject) else str(plain), bucket="")


def queue_limits(shop: Workshop) -> Mapping[str, int]:
    """How many jobs of each queue may run at once."""
    return {shop.queue_name(name): limit for name, limit in QUEUE_LIMITS.items()}


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
