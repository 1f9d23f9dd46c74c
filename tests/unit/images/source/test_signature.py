"""A signed URL is the one that another implementation of the same rules makes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote, urlsplit

import obstore
import pytest
from obstore.store import S3Store

from holdfast_images.source.credentials import signed
from holdfast_images.source.location import Credentials, Secret

KEYS = Credentials(access_key_id="AKID", secret_access_key=Secret("se/cr+et"), session_token=Secret("to/ken=="))


@pytest.mark.parametrize("key", ["a.tar", "with space/+%é日本~_-.", "a" * 900])
@pytest.mark.parametrize("endpoint", ["https://minio.example:9000", "http://127.0.0.1:80", "https://s3.example"])
def test_the_signature_is_that_of_another_implementation(endpoint: str, key: str) -> None:
    store = S3Store(
        "images",
        endpoint=endpoint,
        region="eu-west-3",
        access_key_id=KEYS.access_key_id,
        secret_access_key=KEYS.secret_access_key.text,
        session_token=KEYS.session_token.text if KEYS.session_token else None,
        client_options={"allow_http": True},
    )
    theirs = parse_qs(urlsplit(obstore.sign(store, "GET", key, timedelta(seconds=77))).query)
    now = datetime.strptime(theirs["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()

    url = f"{endpoint}/images/{quote(key, safe='/-_.~')}"
    ours = parse_qs(urlsplit(signed(url, KEYS, region="eu-west-3", now=now, seconds=77)).query)

    assert ours == theirs
