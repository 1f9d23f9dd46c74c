"""Keys that expire, from those who give them: STS, the agent of a container, the metadata of an instance."""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from holdfast_images.errors import AccessDenied, SourceUnavailable
from holdfast_images.source.locations import is_this_host
from holdfast_images.source.settings import Credentials, Secret
from holdfast_images.source.signature import EMPTY, signed
from holdfast_images.source.trust import tls_context, tls_failure

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
