"""Whose keys sign a request: looked for where AWS's own tools look, in their order."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from holdfast_images.errors import AccessDenied
from holdfast_images.source.profiles import Profile, chosen_profile, profile_of
from holdfast_images.source.settings import Credentials, Secret, SourceSettings
from holdfast_images.source.token_services import (
    Sts,
    assume_role,
    assume_role_with_web_identity,
    container_credentials,
    instance_credentials,
)

RENEWED_BEFORE = 300.0
"""Keys that expire are asked for anew so many seconds before."""
_LONGEST_CHAIN = 5


class Keychain:
    """The keys of one fetch, asked for when they are first needed, and again before they expire. For many threads."""

    def __init__(self, settings: SourceSettings, environment: Mapping[str, str], region: str) -> None:
        self._settings = settings
        self._sts = Sts(environment=environment, region=region, allow_http=settings.allow_http)
        self._lock = threading.Lock()
        self._found: Credentials | None = None

    def keys(self, now: float, where: str) -> Credentials:
        """Keys that are good now; AccessDenied, saying what was looked for, if there are none."""
        with self._lock:
            known = self._found
            if known is None or (known.expires_at is not None and known.expires_at - RENEWED_BEFORE < now):
                known = self._found = self._settings.credentials or _find(self._sts, where)
            return known


def _find(sts: Sts, where: str) -> Credentials:
    environment = sts.environment
    profile = chosen_profile(environment)
    found = (
        _of_environment(environment)
        or _of_web_identity(sts)
        or (profile and _of_profile(profile, sts))
        or container_credentials(environment)
        or instance_credentials(environment)
    )
    if found is None:
        raise AccessDenied(
            f"no credentials for {where}: neither in the environment nor in a profile, and this host has no role",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, give the host a role,"
            " or read a public bucket anonymously (--anonymous)",
        )
    return found


def _of_environment(environment: Mapping[str, str]) -> Credentials | None:
    return _static(
        environment.get("AWS_ACCESS_KEY_ID"),
        environment.get("AWS_SECRET_ACCESS_KEY"),
        environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_SECURITY_TOKEN"),
        "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )


def _of_web_identity(sts: Sts) -> Credentials | None:
    file, role = sts.environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"), sts.environment.get("AWS_ROLE_ARN")
    if not file:
        return None
    if not role:
        raise AccessDenied("AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not", hint="set both, or neither")
    return assume_role_with_web_identity(role, file, sts.environment.get("AWS_ROLE_SESSION_NAME"), sts=sts)


def _of_profile(profile: Profile, sts: Sts, depth: int = 1) -> Credentials | None:
    profile.refuse_what_is_not_done()
    role, session = profile.get("role_arn"), profile.get("role_session_name")
    if role is not None:
        if (file := profile.get("web_identity_token_file")) is not None:
            return assume_role_with_web_identity(role, file, session, sts=sts)
        keys = _source_of_role(profile, sts, depth)
        return assume_role(role, keys, session, profile.get("external_id"), sts=sts)
    return _static(
        profile.get("aws_access_key_id"),
        profile.get("aws_secret_access_key"),
        profile.get("aws_session_token"),
        f"of aws_access_key_id and aws_secret_access_key in the profile {profile.name!r}",
    )


def _source_of_role(profile: Profile, sts: Sts, depth: int) -> Credentials:
    """The keys by which a profile takes its role."""
    environment = sts.environment
    found: Credentials | None = None
    source = profile.get("source_profile")
    if source is not None and depth < _LONGEST_CHAIN:
        # A profile may name itself: then its own keys are meant.
        given = profile_of(source, environment)
        if source == profile.name:
            given = Profile(source, {name: value for name, value in given.values.items() if name != "role_arn"})
        found = _of_profile(given, sts, depth + 1)
    else:
        match (profile.get("credential_source") or "").lower():
            case "environment":
                found = _of_environment(environment)
            case "ecscontainer":
                found = container_credentials(environment)
            case "ec2instancemetadata":
                found = instance_credentials(environment)
    if found is None:
        raise AccessDenied(
            f"the AWS profile {profile.name!r} takes the role {profile.get('role_arn')}, and has no keys to do so",
            hint="give it a source_profile that has keys, or a credential_source",
        )
    return found


def _static(access: str | None, secret: str | None, token: str | None, both: str) -> Credentials | None:
    if not access and not secret:
        return None
    if not access or not secret:
        raise AccessDenied(f"{both} only one is set", hint="set both, or neither")
    return Credentials(
        access_key_id=access, secret_access_key=Secret(secret), session_token=Secret(token) if token else None
    )
