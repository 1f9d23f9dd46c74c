"""AWS's Signature Version 4 in the query of a URL. Pure: time comes in as an argument."""

from __future__ import annotations

import configparser
import hashlib
import hmac
import json
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from holdfast_images.errors import AccessDenied, SourceUnavailable
from holdfast_images.source.http import tls_context, tls_failure
from holdfast_images.source.location import Credentials, Secret, SourceSettings, is_this_host

UNSIGNED = "UNSIGNED-PAYLOAD"
"""What S3 wants in the place of the body's digest."""
EMPTY = hashlib.sha256(b"").hexdigest()
"""What every other service wants there, if there is no body."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def signed(
    url: str,
    keys: Credentials,
    *,
    region: str,
    now: float,
    seconds: int,
    service: str = "s3",
    parameters: Mapping[str, str] = {},
    payload: str = UNSIGNED,
) -> str:
    """The URL to be asked by GET within so many seconds. Its path is encoded already, and it has no query."""
    parts = urlsplit(url)
    # As the Host header will say it: without the port that goes without saying.
    host = parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
    time = datetime.fromtimestamp(now, tz=UTC)
    stamp, day = f"{time:%Y%m%dT%H%M%SZ}", f"{time:%Y%m%d}"
    scope = f"{day}/{region}/{service}/aws4_request"
    fields = {
        **parameters,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key_id}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": "host",
    }
    if keys.session_token is not None:
        fields["X-Amz-Security-Token"] = keys.session_token.text
    query = "&".join(f"{name}={value}" for name, value in sorted((_quoted(n), _quoted(v)) for n, v in fields.items()))
    path = parts.path or "/"
    request = "\n".join(["GET", path, query, f"host:{host}\n", "host", payload])
    text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{keys.secret_access_key.text}".encode()
    for each in (day, region, service, "aws4_request"):
        key = hmac.digest(key, each.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"{parts.scheme}://{host}{path}?{query}&X-Amz-Signature={signature}"


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


# --- AWS's own files: the profiles in `~/.aws/credentials` and `~/.aws/config` --------------------------

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
    return profile_of(name, environment) if name else _find_profile("default", environment)


def profile_of(name: str, environment: Mapping[str, str]) -> Profile:
    """The profile of this name; AccessDenied if there is none."""
    found = _find_profile(name, environment)
    if found is None:
        places = " and ".join(str(path) for path in _paths(environment))
        raise AccessDenied(
            f"there is no AWS profile {name!r} in {places}",
            hint="correct AWS_PROFILE, unset it, or make the profile: aws configure --profile " + name,
        )
    return found


def _find_profile(name: str, environment: Mapping[str, str]) -> Profile | None:
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


# --- Keys that expire, from those who give them: STS, the agent of a container, the metadata of an instance ---

SIGNED_SECONDS = 300
_SESSION = "holdfast"
_SECONDS = 5.0
_INSTANCE_SECONDS = 1.0
_MOST_BYTES = 64 << 10
_CONTAINER = "http://169.254.170.2"
_INSTANCE = "http://169.254.169.254"
_CONTAINER_HOSTS = {"169.254.170.2", "169.254.170.23", "fd00:ec2::23"}
_XML = {
    "AccessKeyId": "AccessKeyId",
    "SecretAccessKey": "SecretAccessKey",
    "SessionToken": "Token",
    "Expiration": "Expiration",
}


class Sts(msgspec.Struct, frozen=True, kw_only=True):
    """Where roles are asked for, and what the environment says besides."""

    environment: Mapping[str, str]
    region: str
    allow_http: bool = False
    """Plain http to other hosts than this one, as for images: who takes a role by a token shows it to STS."""

    @property
    def url(self) -> str:
        """AccessDenied if it is plain http that is not allowed."""
        own = self.environment.get("AWS_ENDPOINT_URL_STS") or self.environment.get("AWS_ENDPOINT_URL")
        domain = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        url = (own or f"https://sts.{self.region}.{domain}").rstrip("/")
        parts = urlsplit(url)
        if parts.scheme == "http" and not (self.allow_http or is_this_host(parts.hostname or "")):
            raise AccessDenied(
                f"roles are not asked for in clear at {parts.hostname}: plain http is for this host only",
                hint="begin AWS_ENDPOINT_URL_STS with https://, or set allow_http",
            )
        return url


def assume_role_with_web_identity(role: str, token_file: str, session: str | None, *, sts: Sts) -> Credentials:
    """The keys of a role for whoever has this token."""
    try:
        token = Path(token_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise AccessDenied(
            f"the token of the web identity, {token_file}, cannot be read: {reason}",
            hint="correct AWS_WEB_IDENTITY_TOKEN_FILE, or see to the file's mode",
        ) from None
    fields = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": session or _SESSION,
        "WebIdentityToken": token,
    }
    return _of_sts(role, sts.url, sts.environment, body=urlencode(fields).encode())


def assume_role(role: str, keys: Credentials, session: str | None, external_id: str | None, *, sts: Sts) -> Credentials:
    """The keys of a role for whoever has these keys."""
    fields = {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": role, "RoleSessionName": session or _SESSION}
    if external_id:
        fields["ExternalId"] = external_id
    url = signed(
        f"{sts.url}/",
        keys,
        region=sts.region,
        now=time.time(),
        seconds=SIGNED_SECONDS,
        service="sts",
        parameters=fields,
        payload=EMPTY,
    )
    return _of_sts(role, url, sts.environment)


def container_credentials(environment: Mapping[str, str]) -> Credentials | None:
    """The role of a task or pod; None if this is none."""
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = f"{_CONTAINER}{relative}" if relative else environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not url:
        return None
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and host not in _CONTAINER_HOSTS and not is_this_host(host):
        raise AccessDenied(
            f"AWS_CONTAINER_CREDENTIALS_FULL_URI names {host}, which is asked by https only", hint="correct it"
        )
    headers = {}
    if file := environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        try:
            headers["Authorization"] = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise AccessDenied(f"{file} cannot be read: {error.strerror}", hint="see to the file's mode") from None
    elif token := environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"):
        headers["Authorization"] = token
    answer = _ask(_request(url, headers), environment, "the container's agent", proxied=False)
    return _of_json(answer, "the container's agent")


def instance_credentials(environment: Mapping[str, str]) -> Credentials | None:
    """The role of this machine in EC2; None if it is none, or has none."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = (environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _INSTANCE).rstrip("/")
    roles = f"{base}/latest/meta-data/iam/security-credentials/"
    try:
        wish = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        token = _instance_answer(_request(f"{base}/latest/api/token", wish, method="PUT"))
        headers = {"X-aws-ec2-metadata-token": token.decode()}
        name = _instance_answer(_request(roles, headers)).decode().partition("\n")[0].strip()
        if not name:
            return None
        answer = _instance_answer(_request(roles + name, headers))
    except (OSError, ValueError, HTTPException):
        return None  # nobody is there, or knows of a role: this is no such machine
    return _of_json(answer, "the instance's metadata")


# --- asking -------------------------------------------------------------------------------------------------------


def _request(
    url: str, headers: Mapping[str, str] = {}, *, method: str | None = None, body: bytes | None = None
) -> urllib.request.Request:
    if not url.startswith(("http://", "https://")):
        raise AccessDenied(f"{url[:80]!r} gives no keys: it is no URL of a server", hint="begin with https://")
    return urllib.request.Request(url, data=body, headers=dict(headers), method=method)  # noqa: S310 - see above


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whoever gives keys does so himself: what proves who asks is shown to nobody else."""

    def redirect_request(self, *_: object) -> None:
        """A redirect is told as the status that it is."""


def _instance_answer(request: urllib.request.Request) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
    with opener.open(request, timeout=_INSTANCE_SECONDS) as response:
        return bytes(response.read(_MOST_BYTES))


def _of_sts(role: str, url: str, environment: Mapping[str, str], body: bytes | None = None) -> Credentials:
    text = _ask(_request(url, body=body), environment, f"the role {role}").decode("utf-8", "replace")
    values = {ours: found[1] for theirs, ours in _XML.items() if (found := re.search(f"<{theirs}>([^<]+)<", text))}
    return _credentials(values, "STS")


def _ask(request: urllib.request.Request, environment: Mapping[str, str], what: str, *, proxied: bool = True) -> bytes:
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.HTTPSHandler(context=tls_context(environment, aws=True)),
        _NoRedirects(),
    ]
    if not proxied or is_this_host(urlsplit(request.full_url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS) as response:
            return bytes(response.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        told = error.read(_MOST_BYTES).decode("utf-8", "replace")
        code, message = (re.search(f"<{name}>([^<]*)<", told) for name in ("Code", "Message"))
        reason = ": ".join(found[1] for found in (code, message) if found) or f"status {error.code}"
        if error.code >= 500 or error.code == 429:
            raise SourceUnavailable(f"{what} is not given at the moment: {reason}") from None
        raise AccessDenied(f"{what} is not given: {reason}", hint="see to the role's trust policy") from None
    except OSError as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLError):
            raise tls_failure(cause, what, environment, aws=True, connecting=True) from None
        raise SourceUnavailable(f"{what} cannot be asked for: {cause}") from None
    except HTTPException as error:
        raise SourceUnavailable(f"{what} cannot be asked for: what answers speaks no HTTP: {error}") from None


def _of_json(answer: bytes, who: str) -> Credentials:
    try:
        values = json.loads(answer)
    except ValueError:
        values = None
    return _credentials(values if isinstance(values, dict) else {}, who)


def _credentials(values: Mapping[str, Any], who: str) -> Credentials:
    access, secret, token = (values.get(name) for name in ("AccessKeyId", "SecretAccessKey", "Token"))
    if not isinstance(access, str) or not isinstance(secret, str):
        raise AccessDenied(f"{who} answers with something else than keys", hint="see to the role of this host")
    return Credentials(
        access_key_id=access,
        secret_access_key=Secret(secret),
        session_token=Secret(token) if isinstance(token, str) else None,
        expires_at=_time_of(values.get("Expiration")),
    )


def _time_of(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


# --- Whose keys sign a request: looked for where AWS's own tools look, in their order -------------------

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
