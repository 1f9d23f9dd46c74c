"""From the settings of a command to the image manager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import click

from holdfast import Engine
from holdfast.cli.opening import App, opened
from holdfast.cli.settings import Settings
from holdfast_images.app import Images, opened_workshop, queue_limits
from holdfast_images.cli.settings import settings_of
from holdfast_images.flows.process import all_flows

F = TypeVar("F", bound=Callable[..., Any])

_kept = ExitStack()


def data_option(command: F) -> F:
    """--data, of every command that touches files or devices."""
    return click.option("--data", metavar="DIR", help="Where files and devices are; beside the database by default.")(
        command
    )


@contextmanager
def opened_images(
    settings: Settings, *, create: bool = False, read_only: bool = False, **flags: Any
) -> Iterator[Images]:
    """The image manager of the settings. Only with `create` is a database made that is not there."""
    own = settings_of(settings, **flags)
    _configure_log(settings)
    with opened(settings, create=create, read_only=read_only) as store, opened_workshop(settings.place, own) as shop:
        yield Images(Engine(store, actor=settings.actor), shop, own)


def image_app(settings: Settings) -> App:
    """What `holdfast worker` runs if it is not told otherwise. It stays open until the process ends."""
    shop = _kept.enter_context(opened_workshop(settings.place, settings_of(settings)))
    return App(all_flows(shop), queue_limits(shop))


def _configure_log(settings: Settings) -> None:
    """What steps say goes to stderr: as log lines if they are asked for, else the warnings in plain words."""
    if settings.json and settings.verbosity <= 0:
        logging.disable(logging.ERROR)
    elif settings.verbosity > 0 or settings.log_format == "json":
        from holdfast import logs  # noqa: PLC0415 - seldom asked for

        logs.configure(settings.log_format, level=max(logging.DEBUG, logging.WARNING - 10 * settings.verbosity))
    elif settings.verbosity == 0:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("{message}", style="{"))
        # What ends a job is told as the error of the command.
        handler.addFilter(lambda record: record.levelno in (logging.WARNING, logging.CRITICAL))
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    else:
        logging.disable(logging.ERROR)
