"""The settings of the image manager: a file, the environment and flags, each stronger than the one before."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.errors import InvalidName
from holdfast_images.source.location import SourceSettings

PREFIX = "HOLDFAST_"
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "bucket": ("S3_BUCKET",),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""What a setting is also called in the environment, because other programs call it so. Ours is stronger."""


HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What may be the name of a host: a part of the names of flows and queues."""


class Backend(StrEnum):
    """What devices are made of."""

    DIRECTORY = "directory"
    DEVICEMAPPER = "devicemapper"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, with its default. Credentials are none of them: AWS's own variables and roles are asked."""

    data: str | None = None
    """Where files and devices are; beside the database if nothing is said."""
    backend: Backend = Backend.DIRECTORY
    host: Annotated[str, Meta(pattern=rf"^({HOST_NAME.pattern})?$")] = ""
    """On PostgreSQL, which hosts share: whose devices these are; the name of this host if nothing is said."""

    bucket: str | None = None
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    anonymous: bool = False
    allow_http: bool = False
    api_sources: str = ""
    """URL prefixes, separated by spaces, of what callers over HTTP may have fetched who are no admins; the bucket's
    objects always."""
    connections: Annotated[int, Meta(ge=1, le=16)] = 2
    """How many ranges of an object are fetched at once, at first."""

    policy: Policy = Policy.STRICT
    keep_setuid: bool = False
    limits: Limits = Limits()
    device_size: Annotated[int, Meta(ge=64 << 20)] = 10 << 30
    """Bytes of a new device, for backends that need to know; at least 64 MiB, for its file system."""
    read_origins: bool = True
    """On thin devices: read every byte of an image before a snapshot of it is made. Directories are read by copying."""
    download_timeout: Annotated[float, Meta(gt=0)] = 300.0
    extract_timeout: Annotated[float, Meta(gt=0)] = 1800.0

    @property
    def source(self) -> SourceSettings:
        """How objects are read."""
        return SourceSettings(
            endpoint=self.endpoint,
            region=self.region,
            path_style=self.path_style,
            anonymous=self.anonymous,
            allow_http=self.allow_http,
            most_connections=max(self.connections, SourceSettings().most_connections),
        )


KEYS = frozenset(Settings.__struct_fields__)


def load_settings(
    file: Mapping[str, Any], environment: Mapping[str, str], flags: Mapping[str, Any], *, known: frozenset[str] = KEYS
) -> Settings:
    """All three put together. Raises InvalidName, saying where and what would do, for what is not a setting's value.

    Of the file only the keys in `known` are read: it has settings of the engine, too.
    """
    values: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for name, value in file.items():
        if name == "limits":
            limits |= _limits(value)
        elif name in known:
            values[name] = _value(Settings, name, value, f"{name} in the settings file", strict=True)
    for name, (variable, text) in in_environment(environment).items():
        if name.startswith("limits."):
            limits[name[7:]] = _value(Limits, name[7:], text, variable, strict=False)
        else:
            values[name] = _value(Settings, name, text, variable, strict=False)
    given = {name: value for name, value in flags.items() if value is not None}
    values |= {name: _value(Settings, name, value, f"--{name}", strict=False) for name, value in given.items()}
    return Settings(**values, limits=Limits(**limits))


def in_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Settings and limits that the environment has: name → variable and text. An empty variable says nothing."""
    found = {}
    for name, variables in variables_of_settings():
        variable = next((each for each in variables if environment.get(each)), None)
        if variable is not None:
            found[name] = (variable, environment[variable])
    return found


def variables_of_settings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every setting, those of the limits as `limits.<name>`, and its variables, the strongest first."""
    for name in Settings.__struct_fields__:
        if name != "limits":
            yield name, (PREFIX + name.upper(), *OTHER_NAMES.get(name, ()))
    for name in Limits.__struct_fields__:
        yield f"limits.{name}", (f"{PREFIX}LIMITS_{name.upper()}",)


def data_directory(settings: Settings, database: Path | None) -> Path:
    """Where files and devices are: as set, beside the database, or in the user's state directory."""
    if settings.data:
        return Path(settings.data).expanduser().absolute()
    if database is not None:
        return database.parent.absolute()
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "holdfast").absolute()


def _limits(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidName("limits in the settings file is not a table", hint="[limits], then a line for each")
    for name in value:
        if name not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise InvalidName(f"[limits] in the settings file: {name!r} is no limit", hint=f"known: {known}")
    return {
        name: _value(Limits, name, each, f"limits.{name} in the settings file", strict=True)
        for name, each in value.items()
    }


def _value(kind: type[msgspec.Struct], name: str, value: Any, where: str, *, strict: bool) -> Any:
    wanted = get_type_hints(kind, include_extras=True)[name]
    try:
        converted = msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidName(f"{where}: {value!r} will not do: {error}", hint=_would_do(name)) from None
    if kind is Limits and converted < 1:
        raise InvalidName(f"{where}: {value!r} will not do: a limit is at least 1")
    return converted


def _would_do(name: str) -> str | None:
    choices = {"backend": Backend, "policy": Policy}.get(name)
    return f"one of {', '.join(choices)}" if choices else None
