"""From the settings of a command to the image manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from typing import Any, cast

from holdfast import Engine
from holdfast.cli.opening import App, opened
from holdfast.cli.settings import Settings
from holdfast_images.app import Images, queue_limits
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.cli.settings import configure_log, settings_of
from holdfast_images.devices.protocol import Devices
from holdfast_images.flows.process import all_flows
from holdfast_images.opening import open_catalog, open_devices, workshop_of
from holdfast_images.settings import Settings as ImageSettings

_kept = ExitStack()


@contextmanager
def opened_images(
    settings: Settings, *, create: bool = False, read_only: bool = False, **flags: Any
) -> Iterator[Images]:
    """The image manager of the settings. Only with `create` is a database made that is not there.

    With `read_only` devices are opened when they are first looked at: a list of images needs neither a pool nor root.
    """
    own, place = settings_of(settings, **flags), settings.place
    configure_log(settings)
    with (
        opened(settings, create=create, read_only=read_only) as store,
        open_catalog(place, own) as catalog,
        ExitStack() as kept,
    ):
        devices = _devices_later(kept, place, own)
        if not read_only:
            devices.opened  # noqa: B018 - what is going to be changed must be there
        shop = workshop_of(place, own, catalog, cast(Devices, devices))
        yield Images(Engine(store, actor=settings.actor), shop, own)


def image_app(settings: Settings) -> App:
    """What `holdfast worker` runs if it is not told otherwise. It stays open until the process ends."""
    own, place = settings_of(settings), settings.place
    catalog = Later(lambda: _kept.enter_context(open_catalog(place, own)))
    devices = _devices_later(_kept, place, own)
    shop = workshop_of(place, own, cast(Catalog, catalog), cast(Devices, devices))
    return App(all_flows(shop), queue_limits(shop), lambda: (catalog.opened, devices.opened))


class Later:
    """Stands for something that is opened when it is first used: flows that are only drawn need none of it."""

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._opening = opening

    @cached_property
    def opened(self) -> Any:
        """The thing itself."""
        return self._opening()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)


def _devices_later(kept: ExitStack, place: str, settings: ImageSettings) -> Later:
    return Later(lambda: kept.enter_context(closing(open_devices(place, settings))))
