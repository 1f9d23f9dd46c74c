"""The URL at which an object can be asked for now, signed if need be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from urllib.parse import quote, urlsplit

from holdfast_images.errors import AccessDenied
from holdfast_images.source.locations import HttpObject, S3Object
from holdfast_images.source.settings import SourceSettings

SIGNED_FOR = timedelta(hours=1)
"""How long a signed URL holds. Each connection, and each new try, signs anew."""


def address_of(location: S3Object | HttpObject, settings: SourceSettings) -> Callable[[], str]:
    """A function that gives the URL to ask, signed afresh at each call."""
    if isinstance(location, HttpObject):
        url = f"{location.url}?{location.signature.text}" if location.signature is not None else location.url
        return lambda: url
    if location.anonymous:
        plain = f"{_bucket_url(location)}/{quote(location.key, safe='/-_.~')}"
        return lambda: plain
    return _signer(location, settings)


def _bucket_url(location: S3Object) -> str:
    # A dot in the bucket's name would not be covered by the certificate of *.s3.amazonaws.com.
    in_path = location.path_style
    if in_path is None:
        in_path = location.endpoint is not None or "." in location.bucket
    region = f".{location.region}" if location.region else ""
    endpoint = location.endpoint or f"https://s3{region}.amazonaws.com"
    if in_path:
        return f"{endpoint}/{location.bucket}"
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{location.bucket}.{parts.netloc}"


def _signer(location: S3Object, settings: SourceSettings) -> Callable[[], str]:
    # Here and not above: a run that fetches nothing need not load it.
    import obstore  # noqa: PLC0415
    from obstore.store import S3Store  # noqa: PLC0415

    base = _bucket_url(location)
    in_path = base.endswith(f"/{location.bucket}")
    keys = settings.credentials
    options: dict[str, str] = {}
    if keys is not None:
        options = {"access_key_id": keys.access_key_id, "secret_access_key": keys.secret_access_key.text}
        if keys.session_token is not None:
            options["session_token"] = keys.session_token.text
    store = S3Store(
        location.bucket,
        endpoint=base.removesuffix(f"/{location.bucket}") if in_path else base,
        region=location.region or "us-east-1",
        virtual_hosted_style_request=not in_path,
        client_options={"allow_http": True, "connect_timeout": timedelta(seconds=2), "timeout": timedelta(seconds=5)},
        retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=6)},
        **options,  # type: ignore[arg-type]
    )

    def sign() -> str:
        try:
            return obstore.sign(store, "GET", location.key, SIGNED_FOR)
        except Exception:  # the library has no class for it; the cause names whatever it asked, and what that answered
            raise AccessDenied(
                f"no credentials for {location}",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give the host a role,"
                " or read a public bucket anonymously",
            ) from None

    return sign
