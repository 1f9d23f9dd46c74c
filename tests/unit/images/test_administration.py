"""What is found wrong with a file and with the pool, without either."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_images.administration import check_file, check_pool, leftovers
from holdfast_images.catalog.tables import Verification
from holdfast_images.devices.protocol import PoolHealth, PoolStatus
from holdfast_images.gc import Action, Leftover
from holdfast_images.model import Fingerprint
from tests.unit.images.test_gc import NOW, image

PATH = Path("/images/a.tar")
SEEN = Fingerprint(1, 2, 3, 4)
KNOWN = Verification(
    image_id="a",
    checksum="0" * 64,
    size_bytes=1,
    inode=2,
    mtime_ns=3,
    ctime_ns=4,
    policy="strict",
    warnings="[]",
    verified_at=NOW,
)


def test_a_file_as_it_was_verified_is_fine() -> None:
    assert list(check_file(image(), KNOWN, PATH, SEEN, None)) == []
    assert list(check_file(image(), KNOWN, PATH, SEEN, "0" * 64)) == []


@pytest.mark.parametrize(
    "known, fingerprint, checksum, code",
    [
        (KNOWN, None, None, "file-missing"),
        (KNOWN, SEEN, "1" * 64, "file-changed"),
        (KNOWN, Fingerprint(2, 2, 3, 4), None, "file-changed"),
        (KNOWN, Fingerprint(1, 2, 9, 9), None, "file-touched"),
        (None, SEEN, None, "file-unverified"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    known: Verification | None, fingerprint: Fingerprint | None, checksum: str | None, code: str
) -> None:
    assert [finding.code for finding in check_file(image(), known, PATH, fingerprint, checksum)] == [code]


def test_a_touched_file_whose_content_was_read_is_fine() -> None:
    assert list(check_file(image(), KNOWN, PATH, Fingerprint(1, 2, 9, 9), "0" * 64)) == []


@pytest.mark.parametrize(
    "health, code",
    [("ok", None), ("low", "pool-low"), ("full", "pool-unusable"), ("read-only", "pool-unusable")],
)
def test_a_pool_that_fills_up_is_told(health: str, code: str | None) -> None:
    pool = PoolStatus(
        capacity_bytes=1, used_bytes=1, available_bytes=0, low_water_bytes=1, health=PoolHealth(health), detail="x"
    )

    assert [finding.code for finding in check_pool(pool)] == ([code] if code else [])


def test_leftovers_are_warnings() -> None:
    [finding] = leftovers([Action(kind=Leftover.FILE, subject="a.tar", why="nobody knows it")])

    assert (finding.code, finding.severity) == ("left-over-file", "warning")
