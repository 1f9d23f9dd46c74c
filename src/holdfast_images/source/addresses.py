"""The URL at which an object can be asked for now, signed if need be."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from holdfast_images.source.locations import HttpObject, S3Object
from holdfast_images.source.settings import SourceSettings

_DEFAULT_REGION = "us-east-1"
SIGNED_SECONDS = 3600
"""How long a signed URL holds. Each connection, and each new try, signs anew."""


def address_of(location: S3Object | HttpObject, settings: SourceSettings) -> Callable[[], str]:
    """A function that gives the URL to ask, signed afresh at each call."""
    if isinstance(location, HttpObject):
        url = f"{location.url}?{location.signature.text}" if location.signature is not None else location.url
        return lambda: url
    if location.anonymous:
        plain = f"{_bucket_url(location, location.region)}/{quote(location.key, safe='/-_.~')}"
        return lambda: plain
    return _signer(location, settings)


def _bucket_url(location: S3Object, region: str | None) -> str:
    # A dot in the bucket's name would not be covered by the certificate of *.s3.amazonaws.com.
    in_path = location.path_style
    if in_path is None:
        in_path = location.endpoint is not None or "." in location.bucket
    domain = "amazonaws.com.cn" if (region or "").startswith("cn-") else "amazonaws.com"
    endpoint = location.endpoint or f"https://s3{f'.{region}' if region else ''}.{domain}"
    if in_path:
        return f"{endpoint}/{location.bucket}"
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{location.bucket}.{parts.netloc}"


def _signer(location: S3Object, settings: SourceSettings) -> Callable[[], str]:
    # Here and not above: a run that fetches nothing, or from a public place, need not load it.
    from holdfast_images.source.credentials import Keychain  # noqa: PLC0415
    from holdfast_images.source.signature import signed  # noqa: PLC0415

    known = location.region or _region_of_profile()
    url = f"{_bucket_url(location, known)}/{quote(location.key, safe='/-_.~')}"
    region = known or _DEFAULT_REGION
    keychain = Keychain(settings, os.environ, region)

    def sign() -> str:
        now = time.time()
        return signed(url, keychain.keys(now, str(location)), region=region, now=now, seconds=SIGNED_SECONDS)

    return sign


def _region_of_profile() -> str | None:
    from holdfast_images.source.profiles import chosen_profile  # noqa: PLC0415 - as above

    profile = chosen_profile(os.environ)
    return profile.get("region") if profile is not None else None
