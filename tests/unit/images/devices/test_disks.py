"""A disk is known by what it calls itself."""

from __future__ import annotations

from pathlib import Path

from holdfast_images.devices.block_device import Disk, is_same, name_in


def facts(place: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return place


def test_a_disk_is_called_by_the_first_name_that_it_has(tmp_path: Path) -> None:
    mapped = facts(tmp_path / "dm-0", dm__uuid="LVM-abc", serial="7")
    virtual = facts(tmp_path / "vda", wwid="", serial=" 12  34 ")
    nameless = facts(tmp_path / "ubda", size="8")

    assert name_in(mapped) == "dm/uuid LVM-abc"
    assert name_in(virtual) == "serial 12 34"
    assert name_in(nameless) == ""
    assert name_in(tmp_path / "gone") == ""


def test_a_partition_is_called_after_its_disk(tmp_path: Path) -> None:
    facts(tmp_path / "sda", device__wwid="naa.5")
    facts(tmp_path / "ubda", size="8")

    assert name_in(facts(tmp_path / "sda/sda2", partition="2")) == "device/wwid naa.5 partition 2"
    assert name_in(facts(tmp_path / "ubda/ubda2", partition="2")) == ""


def test_a_disk_with_a_name_may_grow_and_one_without_may_not() -> None:
    named, nameless = Disk(name="serial 1", size=100), Disk(name="", size=100)

    assert is_same(named, Disk(name="serial 1", size=200))
    assert not is_same(named, Disk(name="serial 2", size=100))
    assert not is_same(named, nameless)
    assert is_same(nameless, Disk(name="", size=100))
    assert not is_same(nameless, Disk(name="", size=200))


def test_a_message_says_which_disk_it_is() -> None:
    assert str(Disk(name="", size=5)) == "a disk without a name of 5 bytes"
    assert str(Disk(name="serial 1", size=5)) == "serial 1 of 5 bytes"
