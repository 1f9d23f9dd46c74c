"""AWS's own files: the profiles in `~/.aws/credentials` and `~/.aws/config`."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast_images.errors import AccessDenied

_EXPORT = 'eval "$(aws configure export-credentials --profile {} --format env)", then the same command again'
_NOT_DONE = {
    "sso_session": "signs in by SSO",
    "sso_start_url": "signs in by SSO",
    "login_session": "signs in by a browser",
    "credential_process": "gets its keys from a program (credential_process)",
    "mfa_serial": "asks for a code (mfa_serial)",
}
"""What a profile may say and is not done here, because it starts programs or asks people."""


class Profile(msgspec.Struct, frozen=True):
    """One profile, both files together; the file with the keys is the stronger one."""

    name: str
    values: Mapping[str, str] = {}

    def get(self, key: str) -> str | None:
        """What it says; None for nothing."""
        return self.values.get(key) or None

    def refuse_what_is_not_done(self) -> None:
        """Raise AccessDenied, with the way out, if its keys come from where they are not fetched here."""
        if self.get("aws_access_key_id") is not None and self.get("role_arn") is None:
            return
        for key, what in _NOT_DONE.items():
            if self.get(key) is not None:
                raise AccessDenied(
                    f"the AWS profile {self.name!r} {what}, which is not done here", hint=_EXPORT.format(self.name)
                )


def chosen_profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile that AWS_PROFILE names, or `default` if there is one. AccessDenied if the one named is not there."""
    name = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    return profile_of(name, environment) if name else _find("default", environment)


def profile_of(name: str, environment: Mapping[str, str]) -> Profile:
    """The profile of this name; AccessDenied if there is none."""
    found = _find(name, environment)
    if found is None:
        places = " and ".join(str(path) for path in _paths(environment))
        raise AccessDenied(
            f"there is no AWS profile {name!r} in {places}",
            hint="correct AWS_PROFILE, unset it, or make the profile: aws configure --profile " + name,
        )
    return found


def _find(name: str, environment: Mapping[str, str]) -> Profile | None:
    keys, config = _paths(environment)
    sections = [
        *(_section(config, each) for each in ([f"profile {name}", name] if name == "default" else [f"profile {name}"])),
        _section(keys, name),
    ]
    if all(section is None for section in sections):
        return None
    values: dict[str, str] = {}
    for section in sections:
        values |= section or {}
    return Profile(name, values)


def _paths(environment: Mapping[str, str]) -> tuple[Path, Path]:
    def path(variable: str, default: str) -> Path:
        given = environment.get(variable) or default
        home = environment.get("HOME")
        return Path(home + given[1:]) if home and given.startswith("~/") else Path(given).expanduser()

    return path("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), path("AWS_CONFIG_FILE", "~/.aws/config")


def _section(path: Path, name: str) -> dict[str, str] | None:
    parser = configparser.RawConfigParser(strict=False, default_section="\0")
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        # What is wrong is told without the file's lines, which may be keys.
        reason = error.strerror if isinstance(error, OSError) else "it is no file of sections and names"
        raise AccessDenied(f"{path} cannot be read: {reason}", hint="see to its mode and its form") from None
    wanted = next((each for each in parser.sections() if " ".join(each.replace('"', "").split()) == name), None)
    return dict(parser.items(wanted)) if wanted is not None else None
