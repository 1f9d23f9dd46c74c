"""An archive that is not, or not any more, the one that was verified: nothing that was read of it is believed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.extract import extract
from holdfast_images.archive.sandbox import extract_image
from holdfast_images.errors import ChecksumMismatch
from tests.support.images.archives import COMPRESSIONS, Compression, archive, compressed, directory, member
from tests.support.images.extracting import TIMEOUT, docker_saved, oci
from tests.support.processes import join_all, start

LARGE = 2 << 20
"""More than is read at once."""
PLAIN = archive(directory(b"rootfs"), *(member(b"rootfs/%d" % each, bytes([65 + each]) * LARGE) for each in range(3)))
LAYERS = [archive(member(b"%d" % each, bytes([65 + each]) * LARGE)) for each in range(3)]
FORMS: dict[str, Callable[[], bytes]] = {
    "tar": lambda: PLAIN,
    "oci": lambda: oci(*LAYERS, compression="none"),
    "docker, old": lambda: docker_saved(*LAYERS, style="old"),
    "docker, new": lambda: docker_saved(*LAYERS, style="new"),
}
HELD_BACK = 7
"""The exit status that says that it was noticed."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("outer", COMPRESSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_only_what_was_verified_is_extracted(tmp_path: Path, form: str, outer: Compression) -> None:
    content = compressed(FORMS[form](), outer)
    file = tmp_path / "image.tar"
    file.write_bytes(content)
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()

    def extracted(target: str, checksum: str) -> int:
        done = extract_image(
            file,
            tmp_path / target,
            policy=Policy.STRICT,
            limits=Limits(ratio=10_000),
            timeout=TIMEOUT,
            checksum=checksum,
        )
        return done.file_count

    assert extracted("right", sha256(content)) == 3
    with pytest.raises(ChecksumMismatch, match="changed while it was unpacked"):
        extracted("wrong", sha256(b"another"))


def extract_while_it_changes(path: str, target: str, checksum: str, at: int) -> None:
    """Extract an archive that changes as soon as something was read of it; HELD_BACK if that is noticed."""

    def change(*_: int) -> None:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"EVIL")

    with open(path + ".spool", "w+b") as spool:
        try:
            extract(
                os.open(path, os.O_RDONLY),
                os.open(target, os.O_RDONLY),
                spool=spool.fileno(),
                policy=Policy.STRICT,
                limits=Limits(ratio=10_000),
                keep_setuid=False,
                keep_owner=False,
                progress=change,
                checksum=checksum,
            )
        except ChecksumMismatch:
            os._exit(HELD_BACK)


@pytest.mark.parametrize("form", FORMS)
def test_an_archive_that_changes_while_it_is_read_is_not_believed(tmp_path: Path, form: str) -> None:
    content = FORMS[form]()
    file, target = tmp_path / "image.tar", tmp_path / "target"
    file.write_bytes(content)
    target.mkdir()
    in_the_last_file = content.rindex(b"C" * LARGE) + LARGE // 2
    status = join_all([start(extract_while_it_changes, str(file), str(target), sha256(content), in_the_last_file)])

    assert file.read_bytes() != content, "it was changed"
    assert status == [HELD_BACK]
