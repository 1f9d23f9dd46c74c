"""From the settings of a command to the image manager, to its log, and to what `holdfast worker` runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from holdfast.cli.command import CommandSettings
from holdfast.errors import StoreCorrupt
from holdfast_images.errors import CatalogUnavailable, NotPermitted, printable
from holdfast_images.manager import ImageManager
from holdfast_images.settings import load_settings

if TYPE_CHECKING:
    from holdfast.cli.context import App
    from holdfast.web import Extension

F = TypeVar("F", bound=Callable[..., Any])

# What the metrics of a worker tell of its host; docs/reference/metrics.md is compared.
COUNTED = {
    "image": ("holdfast_images", "Images of this host, by how their download ended."),
    "device": ("holdfast_image_devices", "Unpacked images of this host."),
    "snapshot": ("holdfast_snapshots", "Snapshots of this host."),
}
POOL_SIZES = (
    ("holdfast_pool_capacity_bytes", "What the pool of devices can hold, or the file system that they are on."),
    ("holdfast_pool_used_bytes", "What of it is used."),
    ("holdfast_pool_available_bytes", "What is left."),
    ("holdfast_pool_low_water_bytes", "With less than this left it is low."),
)
POOL_HEALTH = ("holdfast_pool_health", "1 for what the pool is.")
HEALTHS = ("ok", "low", "full", "read-only", "failed")


def data_option(command: F) -> F:
    """--data, of every command that touches files or devices."""
    return click.option("--data", metavar="DIR", help="Where files and devices are; beside the database by default.")(
        command
    )


@contextmanager
def image_manager(settings: CommandSettings, **flags: Any) -> Iterator[ImageManager]:
    """The manager that file, environment and these flags ask for, the flags strongest. Opens nothing itself."""
    with _manager_of(settings, flags) as images:
        try:
            yield images
        except PermissionError as error:
            raise NotPermitted.told(error) from error


def _manager_of(settings: CommandSettings, flags: Mapping[str, Any]) -> ImageManager:
    return ImageManager.open(settings.place, load_settings(settings.file, os.environ, flags))


@contextmanager
def opened(settings: CommandSettings, **flags: Any) -> Iterator[ImageManager]:
    """The same with a log, closed at the end."""
    with image_manager(settings, **flags) as images:
        begin(settings, images)
        try:
            yield images
        except msgspec.ValidationError as error:
            hint = "somebody has written to the database by hand; see: holdfast check"
            raise StoreCorrupt(f"a row cannot be understood: {error}", hint=hint) from error


def begin(settings: CommandSettings, images: ImageManager) -> None:
    """Before jobs are submitted or looked at: who does it, and where the log goes. A finished image needs neither."""
    images.actor = settings.actor
    configure_log(settings)


def image_app(settings: CommandSettings) -> App:
    """What `holdfast worker` runs if it is not told otherwise. It stays open until the process ends."""
    from holdfast.cli.context import App, Gauge, RowRepair  # noqa: PLC0415 - other commands do without
    from holdfast.errors import StoreUnavailable  # noqa: PLC0415 - as above

    images = _manager_of(settings, {})
    images.actor = settings.actor

    def start() -> None:
        try:
            images.prepare()
        except CatalogUnavailable as error:
            raise StoreUnavailable(str(error), hint=error.hint) from error  # which a worker waits for

    def repair(dry_run: bool) -> list[RowRepair]:
        return [RowRepair(row.subject, row.why, row.is_done) for row in images.repair(dry_run=dry_run)]

    def gauges() -> list[Gauge]:
        counts, room = images.counts(), images.room()
        found = [
            Gauge(name, meaning, ("state",), {(state,): n for (each, state), n in counts.items() if each == kind})
            for kind, (name, meaning) in COUNTED.items()
        ]
        sizes = (room.capacity_bytes, room.used_bytes, room.available_bytes, room.low_water_bytes)
        found += [Gauge(*gauge, (), {(): size}) for gauge, size in zip(POOL_SIZES, sizes, strict=True)]
        return [*found, Gauge(*POOL_HEALTH, ("health",), {(each,): float(each == room.health) for each in HEALTHS})]

    return App(list(images.flows), images.queue_limits(), start, images.check, repair, gauges)


def web_extension(settings: CommandSettings) -> Extension:
    """What `holdfast serve` shows of images: nothing where the extra is missing, or where another app never had any."""
    from importlib.util import find_spec  # noqa: PLC0415 - other commands do without

    from holdfast.web import Extension  # noqa: PLC0415 - as above

    images = _manager_of(settings, {})
    if not all(map(find_spec, ("isal", "zstandard"))) or (settings.app is not None and not images.has_images):
        # The app may have flows of images all the same: without routes of their own they are not for callers.
        return Extension(name="images", reserved=[flow.name for flow in images.flows])
    from holdfast_images.web import image_extension  # noqa: PLC0415 - as above

    return image_extension(settings.place, images.settings)


def configure_log(settings: CommandSettings) -> None:
    """What steps say goes to stderr: as log lines if they are asked for, else the warnings in plain words."""
    import logging  # noqa: PLC0415 - a finished image is found without a word

    # A command tells its user of an error itself; the store's log line would only repeat it.
    refusals = logging.getLogger("holdfast.operators")
    refusals.propagate = False
    refusals.addHandler(logging.NullHandler())
    if settings.json and settings.verbosity <= 0:
        logging.disable(logging.ERROR)
    elif settings.verbosity > 0 or settings.log_format == "json":
        from holdfast import logs  # noqa: PLC0415 - seldom asked for

        logs.configure(settings.log_format, level=max(logging.DEBUG, logging.WARNING - 10 * settings.verbosity))
    elif settings.verbosity == 0:

        class PlainWords(logging.Formatter):
            def format(self, record: logging.LogRecord) -> str:
                return printable(record.getMessage())  # a traceback is for who runs a worker, or asks with -v

        handler = logging.StreamHandler()
        handler.setFormatter(PlainWords())
        # What ends a job is told as the error of the command.
        handler.addFilter(lambda record: record.levelno in (logging.WARNING, logging.CRITICAL))
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    else:
        logging.disable(logging.ERROR)
