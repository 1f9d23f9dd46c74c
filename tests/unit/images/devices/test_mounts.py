"""Is a directory in use by a mount?"""

from __future__ import annotations

import pytest

from holdfast_images.devices.users import mounts_on

ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
HOME = "/state/devices/thin-1"


@pytest.mark.parametrize(
    "line, expected",
    [
        ("", []),
        ("30 22 0:30 / /elsewhere rw - tmpfs tmpfs rw\n", []),
        ("30 22 0:30 / /state/devices/thin-1/content/proc rw - proc proc rw\n", [f"{HOME}/content/proc"]),
        ("30 22 0:30 / /state/devices/thin-10 rw - tmpfs tmpfs rw\n", []),
        ("30 22 254:0 /state/devices/thin-1/content /vm/root rw - ext4 /dev/vda rw\n", ["/vm/root"]),
        ("30 22 254:0 /state/devices/thin-12 /vm/root rw - ext4 /dev/vda rw\n", []),
        ("30 22 253:9 /state/devices/thin-1 /vm/root rw - ext4 /dev/vdb rw\n", []),
        (f"30 22 0:40 / /merged rw - overlay overlay rw,lowerdir={HOME}/content:/b,upperdir=/u\n", ["/merged"]),
        ("30 22 0:40 / /merged rw - overlay overlay rw,lowerdir=/b,upperdir=/u\n", []),
        ("30 22 0:30 / /state/devices/thin-1/a\\040b rw - tmpfs tmpfs rw\n", [f"{HOME}/a b"]),
    ],
)
def test_a_mount_in_it_of_it_or_over_it_is_found(line: str, expected: list[str]) -> None:
    assert mounts_on(HOME, ROOT + line) == expected


def test_a_state_that_is_a_mount_itself_is_not_in_use() -> None:
    mounts = ROOT + "30 22 253:1 /data /state rw - ext4 /dev/vdb rw\n"

    assert mounts_on(HOME, mounts) == []
    assert mounts_on(HOME, mounts + "31 22 253:1 /data/devices/thin-1 /vm rw - ext4 /dev/vdb rw\n") == ["/vm"]
    assert mounts_on(HOME, mounts + "31 22 253:1 /state/devices/thin-1 /vm rw - ext4 /dev/vdb rw\n") == []
