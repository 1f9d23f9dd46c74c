"""AWS's Signature Version 4 in the query of a URL. Pure: time comes in as an argument."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from holdfast_images.source.settings import Credentials

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
