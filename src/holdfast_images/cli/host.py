"""`holdfast host …`: whose files and devices these are."""

from __future__ import annotations

from typing import Any

import click

from holdfast import Engine
from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.opening import opened
from holdfast.cli.output import note, print_fields, show
from holdfast.cli.settings import Settings
from holdfast_images.catalog.rows import HostClaim
from holdfast_images.cli.settings import configure_log, data_option, settings_of
from holdfast_images.data_owner import Owner, read_owner
from holdfast_images.errors import ImageBusy
from holdfast_images.opening import adopt_data, data_of, open_catalog, owner_of_data


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
    own, place = settings_of(settings, **flags), settings.place
    configure_log(settings)
    with opened(settings, read_only=True), open_catalog(place, own) as catalog:
        asking = owner_of_data(place, own, catalog)
        known = catalog.get_host() if asking.host else None
        marked = read_owner(data_of(place, own))
    data = {"asking": asking, "marked": marked, "known": known}
    show(settings, data, lambda: _print(asking, marked, known))
    return ExitCode.OK


@host.command()
@data_option
@click.pass_obj
def adopt(settings: Settings, /, **flags: Any) -> int:
    """Take the data directory, and the name of this host, over for this machine.

    For a machine that has taken the place of another, or a directory that has been moved to it. Whoever had them must
    not use them any more: what it has made is in the rows of this host. Refused while a worker of this host is live.
    """
    own, place = settings_of(settings, **flags), settings.place
    configure_log(settings)
    with opened(settings) as store, open_catalog(place, own) as catalog:
        _refuse_live_workers(Engine(store), owner_of_data(place, own, catalog).host)
        marked, before = adopt_data(place, own, catalog)
    show(settings, {"marked": marked, "before": before}, lambda: _print(marked, marked, None))
    note(settings, f"{marked.directory} is this machine's now")
    return ExitCode.OK


def _refuse_live_workers(engine: Engine, host: str) -> None:
    flows = {name for worker in engine.live_workers() for name in worker.flows}
    if host and any(name.endswith(f".{host}") for name in flows):
        raise ImageBusy(
            f"a worker of host {host} is live, or was within the last 90 seconds",
            hint="stop it, and wait until it is known to be gone: holdfast stats",
        )


def _print(asking: Owner, marked: Owner | None, known: HostClaim | None) -> None:
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
