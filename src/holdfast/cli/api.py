"""`holdfast api …`: the HTTP API, described without a server."""

from __future__ import annotations

from importlib import import_module

import click
import msgspec

from holdfast.cli.command import CommandSettings, Group
from holdfast.cli.context import app_flows


@click.group(cls=Group)
def api() -> None:
    """Describe the HTTP API that `holdfast serve` serves."""


@api.command()
@click.pass_obj
def spec(settings: CommandSettings) -> None:
    """Print the OpenAPI 3.1 document, as /openapi.json gives it.

    With --app, also with the types of its requests. Needs neither a server nor a database.
    """
    from holdfast.web.application import api_routes  # noqa: PLC0415 - of an extra
    from holdfast.web.openapi import document  # noqa: PLC0415 - as above

    flows = app_flows(settings) if settings.app else []
    extensions = []
    if settings.web is not None:
        module, _, function = settings.web.partition(":")
        extensions.append(getattr(import_module(module), function)(settings))
    print(msgspec.json.format(msgspec.json.encode(document(api_routes(extensions), flows)), indent=2).decode())
