"""The settings file: TOML, weaker than the environment. What it does not know it does not take."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

from holdfast.errors import SettingsError

ENGINE_KEYS = ("state", "store", "app", "actor", "log_format")


def read_config(path: str | None, *, more: Collection[str] = ()) -> dict[str, Any]:
    """What the file says, or the default one if there is any; keys of others' are for them to judge."""
    found = path or next((each for each in default_files() if os.path.isfile(each)), None)
    if found is None:
        return {}
    content = _parsed(found)
    known = sorted({*ENGINE_KEYS, *more})
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise SettingsError(f"{found}: {unknown[0]!r} is no setting", hint=f"known here: {', '.join(known)}")
    for name in ENGINE_KEYS:
        if name in content and not isinstance(content[name], str):
            raise SettingsError(f"{found}: {name} is not a text", hint=f'write {name} = "…"')
    if content.get("log_format", "text") not in ("text", "json"):
        raise SettingsError(f"{found}: log_format is {content['log_format']!r}", hint="text or json")
    return content


def default_files() -> Iterator[str]:
    """Where it is looked for, the user's own before the host's."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    yield os.path.join(base, "holdfast", "config.toml")
    yield "/etc/holdfast/config.toml"


def _parsed(path: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most commands have no file to read

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", hint="see --config and HOLDFAST_CONFIG") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
