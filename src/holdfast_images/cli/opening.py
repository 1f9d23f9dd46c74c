"""From the settings of a command to the image manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from holdfast import Engine
from holdfast.cli.opening import App, opened
from holdfast.cli.settings import Settings
from holdfast.errors import StoreUnavailable
from holdfast_images.app import Images, queue_limits
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.cli.settings import configure_log, settings_of
from holdfast_images.devices.protocol import Devices
from holdfast_images.errors import CatalogUnavailable
from holdfast_images.flows.process import all_flows
from holdfast_images.opening import device_path, open_catalog, open_devices, own_data, workshop_of
from holdfast_images.settings import Settings as ImageSettings

_kept = ExitStack()


@contextmanager
def opened_images(
    settings: Settings, *, create: bool = False, read_only: bool = False, **flags: Any
) -> Iterator[Images]:
    """The image manager of the settings. Only with `create` is a database made that is not there.

    With `read_only` devices are opened when they are first looked at: a list of images needs neither a pool nor root.
    A command with --data looks at files and devices, and is refused at once if they are another host's.
    """
    own, place = settings_of(settings, **flags), settings.place
    configure_log(settings)
    with (
        opened(settings, create=create, read_only=read_only) as store,
        open_catalog(place, own) as catalog,
        ExitStack() as kept,
    ):
        if read_only and "data" in flags:
            own_data(place, own, catalog, read_only=True)
        devices = _devices_later(kept, place, own, catalog, read_only=read_only)
        if not read_only:
            devices.opened  # noqa: B018 - what is going to be changed must be there
        shop = workshop_of(place, own, catalog, cast(Devices, devices))
        yield Images(Engine(store, actor=settings.actor), shop, own)


def image_app(settings: Settings) -> App:
    """What `holdfast worker` runs if it is not told otherwise. It stays open until the process ends."""
    own, place = settings_of(settings), settings.place
    catalog = Later(lambda: _kept.enter_context(open_catalog(place, own)))
    devices = _devices_later(_kept, place, own, cast(Catalog, catalog))
    shop = workshop_of(place, own, cast(Catalog, catalog), cast(Devices, devices))

    def start() -> None:
        try:
            catalog.opened  # noqa: B018 - what steps are going to use must be there
            devices.opened  # noqa: B018 - as above
        except CatalogUnavailable as error:
            raise StoreUnavailable(str(error), hint=error.hint) from error  # which a worker waits for

    return App(all_flows(shop), queue_limits(shop), start)


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


class DevicesLater(Later):
    """Devices that are opened when one of them is looked at: where one is can be told without."""

    def __init__(self, opening: Callable[[], Devices], place: str, settings: ImageSettings) -> None:
        super().__init__(opening)
        self._place = place
        self._settings = settings

    def path_of(self, name: str) -> Path:
        """As the backend says it."""
        return device_path(self._place, self._settings, name)


def _devices_later(
    kept: ExitStack, place: str, settings: ImageSettings, catalog: Catalog, *, read_only: bool = False
) -> DevicesLater:
    def opening() -> Devices:
        own_data(place, settings, catalog, read_only=read_only)
        return kept.enter_context(closing(open_devices(place, settings)))

    return DevicesLater(opening, place, settings)
