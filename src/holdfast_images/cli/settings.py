"""From the settings of a command to those of the image manager, and to its log."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.settings import Settings as CommandSettings
from holdfast_images.errors import printable
from holdfast_images.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])


def data_option(command: F) -> F:
    """--data, of every command that touches files or devices."""
    return click.option("--data", metavar="DIR", help="Where files and devices are; beside the database by default.")(
        command
    )


def settings_of(settings: CommandSettings, **flags: Any) -> Settings:
    """As the file, the environment and these flags say, the flags strongest."""
    return load_settings(settings.file, os.environ, flags)


def configure_log(settings: CommandSettings) -> None:
    """What steps say goes to stderr: as log lines if they are asked for, else the warnings in plain words."""
    import logging  # noqa: PLC0415 - a finished image is found without a word

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
