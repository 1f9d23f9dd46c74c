"""Drives `holdfast` with its image commands, as a user does, on archives made here."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.acceptance.driving import PATIENCE, Ended, Holdfast
from tests.support.images.archives import archive, directory, member, symlink
from tests.support.images.lying_server import Exchange, LyingServer

ROOT = [directory(b"rootfs/"), directory(b"rootfs/etc/"), directory(b"rootfs/usr/"), directory(b"rootfs/var/")]
HONEST = archive(*ROOT, member(b"rootfs/etc/hostname", b"demo\n"), member(b"rootfs/usr/program", b"x" * 100_000))
HOSTILE = archive(*ROOT, symlink(b"rootfs/etc/shadow", b"/etc/shadow"), member(b"rootfs/../../escape", b"!"))

FIELDS = [
    *("image_id", "s3_key", "checksum", "size_bytes", "local_path"),
    *("device_id", "device_name", "device_path", "file_count"),
    *("snapshot_id", "snapshot_name", "snapshot_path", "stages", "asked_at", "warnings"),
]


class ImageHoldfast(Holdfast):
    """The command with an empty state, no app, and no settings of this machine."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        del self.environment["HOLDFAST_APP"]
        self.environment["HOME"] = str(directory)

    @staticmethod
    def command(*words: str | Path) -> list[str]:
        return [sys.executable, "-m", "holdfast_images.cli", *map(str, words)]

    def source(self, content: bytes = HONEST, name: str = "image.tar") -> str:
        """The URL of a file with this content."""
        path = self.directory / name
        path.write_bytes(content)
        return f"file://{path}"

    def process(self, source: str, *words: str, **environment: str | None) -> Any:
        """What process-image says of an image that it takes."""
        return self.json("process-image", "--source", source, *words, **environment)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """A command that is not waited for."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left(self) -> list[str]:
        """Everything that is on disk of images and devices."""
        places = [self.state / "images", self.state / "devices"]
        return sorted(path.name for place in places if place.exists() for path in place.iterdir())


def ended(process: subprocess.Popen[str]) -> Ended:
    """How a started command ended."""
    out, err = process.communicate(timeout=PATIENCE)
    return Ended(process.returncode, out, err)


class Gate:
    """A server that gives the image away only when the gate is open, and tells when somebody waits at it."""

    def __init__(self, content: bytes = HONEST) -> None:
        self.server = LyingServer()
        self.server.content = content
        self.server.lie = self._wait
        self.asked = threading.Event()
        self._opened = threading.Event()

    @property
    def url(self) -> str:
        return f"{self.server.url}/image.tar"

    def open(self) -> None:
        self._opened.set()

    def _wait(self, exchange: Exchange) -> None:
        self.asked.set()
        self._opened.wait(PATIENCE)
        exchange.honest()
