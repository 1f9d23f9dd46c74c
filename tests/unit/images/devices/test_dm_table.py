"""Tables and status lines: taken only if they are exactly as the kernel documents them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ErrorRecord
from holdfast_images.devices.dm_control import MapperError
from holdfast_images.devices.dm_table import (
    LEAST_METADATA,
    MOST_METADATA,
    MOST_THIN_ID,
    Mode,
    Target,
    ThinPoolStatus,
    UnreadableText,
    metadata_bytes,
    parse_thin_pool_status,
    parse_thin_pool_table,
    parse_thin_table,
    shown_thin,
    thin_pool_target,
    thin_target,
)
from holdfast_images.errors import ImageError, error_from

USED = "4 120/2048 4711/16384 - rw discard_passdown error_if_no_space - 1024"


def test_a_status_is_read() -> None:
    assert parse_thin_pool_status(USED) == ThinPoolStatus(
        mode=Mode.WRITE,
        transaction_id=4,
        used_metadata_blocks=120,
        total_metadata_blocks=2048,
        used_data_blocks=4711,
        total_data_blocks=16384,
        error_if_no_space=True,
        metadata_low_water=1024,
    )


@pytest.mark.parametrize(
    "text, mode, needs_check, held_root",
    [
        ("4 1/2 3/4 - ro discard_passdown queue_if_no_space needs_check 1024", Mode.READ_ONLY, True, None),
        ("4 1/2 4/4 77 out_of_data_space ignore_discard error_if_no_space - 9", Mode.OUT_OF_DATA_SPACE, False, 77),
        ("Fail", Mode.FAIL, False, None),
        ("Error", Mode.FAIL, False, None),
        # Before Linux 4.19 there was no metadata low-water mark.
        ("4 1/2 3/4 - rw no_discard_passdown error_if_no_space -", Mode.WRITE, False, None),
    ],
)
def test_what_a_sick_pool_says_is_read(text: str, mode: Mode, needs_check: bool, held_root: int | None) -> None:
    status = parse_thin_pool_status(text)

    assert (status.mode, status.needs_check, status.held_root) == (mode, needs_check, held_root)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "4 120 4711/16384 - rw discard_passdown error_if_no_space -",
        "4 120/100 4711/16384 - rw discard_passdown error_if_no_space -",
        "4 120/2048 4711/16384 - yes discard_passdown error_if_no_space -",
        "4 120/2048 4711/16384 - rw discard_passdown error_if_no_space maybe",
        "4 120/2048 4711/16384 - rw discard_passdown sometimes -",
        "4 120/2048 4711/16384 - rw perhaps error_if_no_space - 9",
        "x 120/2048 4711/16384 - rw discard_passdown error_if_no_space -",
        "4 -1/2048 4711/16384 - rw discard_passdown error_if_no_space -",
    ],
)
def test_a_status_that_is_not_documented_is_refused(text: str) -> None:
    with pytest.raises(UnreadableText):
        parse_thin_pool_status(text)


@given(st.text(alphabet="0123456789/- rwofail_", max_size=80))
def test_no_text_is_half_understood(text: str) -> None:
    try:
        status = parse_thin_pool_status(text)
    except UnreadableText:
        return

    assert status.used_data_blocks <= status.total_data_blocks


def test_a_pool_neither_hangs_when_it_is_full_nor_shows_old_data() -> None:
    target = thin_pool_target("/dev/a", "/dev/b", 1000, low_water_blocks=7)
    table = parse_thin_pool_table(target)

    assert str(target) == "0 896 thin-pool /dev/a /dev/b 128 7 1 error_if_no_space"
    assert table.features == {"error_if_no_space"}
    assert (table.metadata, table.data, table.block_sectors, table.low_water_blocks) == ("/dev/a", "/dev/b", 128, 7)


@pytest.mark.parametrize("path", ["", "/dev/a b", "/dev/a\n", "/dev/a\0"])
def test_a_path_that_would_be_several_words_is_refused(path: str) -> None:
    with pytest.raises(ImageError):
        thin_pool_target(path, "/dev/b", 1000, low_water_blocks=0)


def test_a_pool_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(ImageError, match="too small"):
        thin_pool_target("/dev/a", "/dev/b", 127, low_water_blocks=0)


@given(st.integers(0, MOST_THIN_ID), st.integers(1, 1 << 40))
def test_a_thin_table_is_read_as_it_was_written(thin_id: int, sectors: int) -> None:
    table = parse_thin_table(thin_target("254:0", thin_id, sectors * 512))

    assert table is not None
    assert (table.id, table.length, table.pool) == (thin_id, sectors, "254:0")


@pytest.mark.parametrize("thin_id, size", [(-1, 512), (MOST_THIN_ID + 1, 512), (1, 0), (1, 513), (1, -512)])
def test_a_device_that_cannot_be_is_refused(thin_id: int, size: int) -> None:
    with pytest.raises(ImageError):
        thin_target("254:0", thin_id, size)


@pytest.mark.parametrize("text", ["254:0", "254:0 x", "254:0 1 254:9", "/dev/dm-0 1", "254:0 -1"])
def test_a_thin_table_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(UnreadableText):
        parse_thin_table(Target(0, 8, "thin", text))


def test_another_kind_of_device_is_no_thin_one() -> None:
    assert parse_thin_table(Target(0, 8, "linear", "254:0 0")) is None


@pytest.mark.parametrize("text", ["", "a b 128", "a b x 0", "a b 128 0 2 error_if_no_space", "a b 128 0 x"])
def test_a_pool_table_that_is_not_documented_is_refused(text: str) -> None:
    with pytest.raises(UnreadableText):
        parse_thin_pool_table(Target(0, 8, "thin-pool", text))


@given(st.integers(1, 1 << 50))
def test_metadata_are_neither_too_small_nor_more_than_the_kernel_uses(data: int) -> None:
    size = metadata_bytes(data)

    assert LEAST_METADATA <= size <= MOST_METADATA
    assert size == MOST_METADATA or size >= 48 * (data // 65536)


def test_a_refusal_of_the_device_mapper_is_the_same_when_a_job_has_kept_it() -> None:
    error = MapperError(errno.EIO, "dmsetup resume vm")
    record = ErrorRecord(type="MapperError", message=str(error), facts=error.facts)
    kept = error_from(record, "01")
    bare = error_from(ErrorRecord(type="MapperError", message="said"), "01")

    assert isinstance(kept, MapperError)
    assert (str(kept), kept.code) == (str(error), errno.EIO)
    assert str(bare) == "said"


@pytest.mark.parametrize(
    "target, shown",
    [
        (Target(0, 8, "thin", "254:0 7"), 7),
        (Target(0, 8, "thin", "254:0 7 7:1"), 7),
        (Target(0, 8, "thin", "254:1 7"), None),
        (Target(0, 8, "linear", "254:0 7"), None),
        (Target(0, 8, "thin", "254:0"), None),
        (Target(0, 8, "error", ""), None),
    ],
)
def test_what_a_table_shows_of_a_pool_is_known_with_an_origin_outside_of_it_too(
    target: Target, shown: int | None
) -> None:
    assert shown_thin(target, "254:0") == shown
