"""What is made of the kernel's words: the health of a pool, superblocks, mounts, and differences between places."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from holdfast_images.devices.block_device import inodes_for, parse_superblock, valid_uuid
from holdfast_images.devices.consistency import PoolFacts, Shown, differences
from holdfast_images.devices.dm_table import Mode, ThinPoolStatus
from holdfast_images.devices.mounts import Mount, parse_mountinfo
from holdfast_images.devices.pool_record import Backing, PoolRecord, judge_pool
from holdfast_images.devices.protocol import PoolHealth
from holdfast_images.devices.record import checked
from holdfast_images.errors import ImageError

RECORD = PoolRecord(
    name="pool",
    mark=1,
    metadata=Backing(path="/dev/a", is_file=False),
    data=Backing(path="/dev/b", is_file=False),
    low_water_bytes=100 * 65536,
)
STATUS = ThinPoolStatus(
    mode=Mode.WRITE, used_metadata_blocks=10, total_metadata_blocks=100, used_data_blocks=10, total_data_blocks=1000
)


@pytest.mark.parametrize(
    "change, health, words",
    [
        ({}, PoolHealth.OK, ""),
        ({"used_data_blocks": 900}, PoolHealth.OK, ""),
        ({"used_data_blocks": 901}, PoolHealth.LOW, "nearly full: 901 of 1000"),
        ({"used_data_blocks": 1000}, PoolHealth.FULL, "1000 of 1000"),
        ({"mode": Mode.OUT_OF_DATA_SPACE}, PoolHealth.FULL, "is full"),
        ({"used_metadata_blocks": 80}, PoolHealth.OK, ""),
        ({"used_metadata_blocks": 81}, PoolHealth.LOW, "metadata of pool pool is nearly full: 81 of 100"),
        ({"used_metadata_blocks": 90}, PoolHealth.LOW, "nearly full"),
        ({"used_metadata_blocks": 91}, PoolHealth.FULL, "metadata of pool pool is full: 91 of 100"),
        ({"mode": Mode.READ_ONLY}, PoolHealth.READ_ONLY, "read-only"),
        ({"mode": Mode.READ_ONLY, "needs_check": True}, PoolHealth.READ_ONLY, "must be checked"),
        ({"mode": Mode.FAIL}, PoolHealth.FAILED, "has failed"),
    ],
)
def test_a_pool_is_judged_by_its_status(change: dict[str, object], health: PoolHealth, words: str) -> None:
    status = msgspec.structs.replace(STATUS, **change)
    room = judge_pool(status, RECORD)

    assert room.health is health
    assert words in room.detail
    assert room.available_bytes == (status.total_data_blocks - status.used_data_blocks) * 65536


@pytest.mark.parametrize(
    "below, health, words",
    [
        (1 << 40, PoolHealth.OK, ""),
        (99 * 65536, PoolHealth.LOW, "6488064 bytes are left below /dev/b"),
        (65535, PoolHealth.FULL, "65535 bytes are left below /dev/b"),
    ],
)
def test_a_pool_on_a_file_has_no_more_room_than_the_disk_below_it(below: int, health: PoolHealth, words: str) -> None:
    room = judge_pool(STATUS, RECORD, below)

    assert room.health is health
    assert words in room.detail
    assert room.available_bytes == min(below, 990 * 65536)


def test_an_ext4_is_known_by_its_superblock() -> None:
    raw = bytearray(1024)
    raw[0x38:0x3A] = b"\x53\xef"
    raw[0x68:0x78] = bytes(range(16))
    superblock = parse_superblock(bytes(raw))

    assert superblock is not None
    assert superblock.uuid == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert superblock.digest == hashlib.sha256(raw).hexdigest()
    assert parse_superblock(bytes(1024)) is None
    assert parse_superblock(bytes(raw[:1000])) is None


def test_a_uuid_is_one_or_refused() -> None:
    assert valid_uuid("00010203-0405-0607-0809-0A0B0C0D0E0F") == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    with pytest.raises(ImageError):
        valid_uuid("clear")


@pytest.mark.parametrize(
    "size, files, least", [(10 << 30, 0, 655_360), (64 << 20, 50_000, 56_000), (1 << 30, 10, 65_536)]
)
def test_there_are_inodes_enough(size: int, files: int, least: int) -> None:
    assert inodes_for(size, files) == least


def test_mountinfo_is_read() -> None:
    text = (
        "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n"
        "30 22 252:3 / /a\\040b/mounts/1-2 rw - ext4 /dev/mapper/thin-1 rw\n"
    )

    assert parse_mountinfo(text) == [Mount(22, "254:0", "/"), Mount(30, "252:3", "/a b/mounts/1-2")]


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a b", "a\\b", "ä", "a\n", "x" * 128, 'a"'])
def test_a_name_that_the_device_mapper_would_change_is_refused(name: str) -> None:
    with pytest.raises(ImageError):
        checked(name)


AGREED = PoolFacts(
    recorded={1: "thin-1", 2: "snap"},
    in_pool=frozenset({1, 2}),
    shown=(Shown(name="snap"),),
    loop_devices={"/data.img": ("/dev/loop0",)},
)


def test_of_a_pool_that_does_not_say_what_it_has_only_that_is_said() -> None:
    facts = msgspec.structs.replace(AGREED, in_pool=frozenset(), unlisted="pool p is ro")

    assert [(each.code, each.message) for each in differences(facts)] == [("pool-unlisted", "pool p is ro")]


def test_nothing_is_said_where_all_places_agree() -> None:
    assert list(differences(AGREED)) == []


@pytest.mark.parametrize(
    "change, code, subject",
    [
        ({"in_pool": frozenset({1})}, "device-lost", "snap"),
        ({"in_pool": frozenset({1, 2, 3})}, "unknown-id", "id 3"),
        ({"unreadable": ("thin-9",)}, "unreadable-record", "thin-9"),
        ({"leftovers": (".trash-x",)}, "leftover", ".trash-x"),
        ({"shown": (Shown(name="thin-7"),)}, "unknown-device", "thin-7"),
        ({"shown": (Shown(name="snap", suspended=True),)}, "suspended", "snap"),
        ({"shown": (Shown(name="pool-look-1-2", passing=True),)}, "abandoned-look", "pool-look-1-2"),
        ({"abandoned_mounts": ("/m",)}, "abandoned-mount", "/m"),
        ({"loop_devices": {"/data.img": ()}}, "loop-devices", "/data.img"),
        ({"loop_devices": {"/data.img": ("/dev/loop0", "/dev/loop1")}}, "loop-devices", "/data.img"),
    ],
)
def test_each_difference_is_told(change: dict[str, object], code: str, subject: str) -> None:
    [found] = differences(msgspec.structs.replace(AGREED, **change))

    assert (found.code, found.subject) == (code, subject)
