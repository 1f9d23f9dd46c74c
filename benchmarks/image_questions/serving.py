"""A real S3 server on this host, and one bucket in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import obstore
from obstore.store import S3Store

from holdfast_images.source.location import Location, SourceSettings, location_of
from tests.support.images.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server


class Bucket(msgspec.Struct, frozen=True):
    """Where images come from in a benchmark."""

    server: S3Server

    @property
    def settings(self) -> SourceSettings:
        """How the image manager reads it."""
        return SourceSettings(endpoint=self.server.endpoint, credentials=CREDENTIALS)

    @property
    def environment(self) -> dict[str, str]:
        """How its command line is told."""
        return {
            "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key.text,
            "AWS_ENDPOINT_URL": self.server.endpoint,
            "AWS_REGION": "us-east-1",
            "S3_BUCKET": BUCKET,
        }

    def put(self, key: str, content: bytes | Path) -> None:
        """Make an object of it."""
        obstore.put(self._store(), key, content)

    def signed(self, key: str) -> str:
        """A URL with which anybody, curl too, may read the object."""
        return obstore.sign(self._store(), "GET", key, timedelta(hours=1))

    def location(self, key: str) -> Location:
        """The object, for fetch()."""
        return location_of(f"s3://{BUCKET}/{key}", settings=self.settings)

    def _store(self) -> S3Store:
        return S3Store(
            BUCKET,
            endpoint=self.server.endpoint,
            region="us-east-1",
            access_key_id=CREDENTIALS.access_key_id,
            secret_access_key=CREDENTIALS.secret_access_key.text,
            client_options={"allow_http": True, "timeout": timedelta(minutes=5)},
        )


@contextmanager
def bucket(place: Path) -> Iterator[Bucket]:
    """The server, as long as the block lasts."""
    directory = place / "s3"
    directory.mkdir()
    with s3_server(directory) as server:
        yield Bucket(server)
