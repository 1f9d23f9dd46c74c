"""`holdfast host …`: whose files and devices these are."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_fields, show
from holdfast.cli.settings import Settings
from holdfast_images.cli.session import data_option, opened
from holdfast_images.host import HostReport


@click.group(cls=Group)
def host() -> None:
    """See whose files and devices these are, or take them over."""


@host.command("show")
@data_option
@click.pass_obj
def show_host(settings: Settings, /, **flags: Any) -> int:
    """Show what this host is called, and whose its data directory is.

    Nothing is changed.
    """
    with opened(settings, **flags) as images:
        report = images.host()
    show(settings, report, lambda: _print(report))
    return ExitCode.OK


@host.command()
@data_option
@click.pass_obj
def adopt(settings: Settings, /, **flags: Any) -> int:
    """Take the data directory, and the name of this host, over for this machine.

    For a machine that has taken the place of another, or a directory that has been moved to it. Whoever had them must
    not use them any more: what it has made is in the rows of this host. Refused while a worker of this host is live.
    """
    with opened(settings, **flags) as images:
        done = images.adopt()
    marked = done.marked
    show(settings, done, lambda: _print(HostReport(asking=marked, marked=marked, known=None)))
    note(settings, f"{marked.directory} is this machine's now")
    return ExitCode.OK


def _print(report: HostReport) -> None:
    asking, marked, known = report.asking, report.marked, report.known
    print_fields(
        [
            ("host", asking.host or None),
            ("machine", asking.machine or None),
            ("store", asking.store),
            ("directory", asking.directory),
            ("marked for host", marked.host or None if marked else None),
            ("marked for store", marked.store if marked else None),
            ("the host's machine", known.machine or None if known else None),
            ("the host's directory", known.directory if known else None),
        ]
    )
