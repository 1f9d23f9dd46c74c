"""A plain tar, extracted by the real child: faithful where it should be, and never outside of the target."""

from __future__ import annotations

import os
import stat
import tarfile
import threading
from pathlib import Path

import pytest

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.errors import DeviceLost, ImageError, ImageRefused
from tests.hostile.corpus import ATTACKS, Attack
from tests.support.images.archives import (
    COMPRESSIONS,
    Compression,
    Form,
    archive,
    compressed,
    directory,
    hardlink,
    member,
    symlink,
)
from tests.support.images.extracting import SMALL_ROOT, canaries, extracted, facts, inspected_by_child

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


pytestmark = pytest.mark.usefixtures("writers")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_tar_is_extracted_whatever_compressed_it(target: Path, compression: Compression) -> None:
    told = extracted(compressed(archive(*SMALL_ROOT), compression), target)

    assert (target / "rootfs/etc/passwd").read_text() == "root:x:0:0::/:/bin/sh\n"
    assert os.readlink(target / "rootfs/usr/link") == "../etc/passwd"
    assert (told.file_count, told.total_bytes) == (2, 22)


@ROOT_ONLY
def test_everything_that_is_told_about_an_entry_is_kept(target: Path) -> None:
    content = archive(
        directory(b"d", mode=0o1777, uid=3, gid=4, mtime=1_500_000_000),
        member(b"d/file", b"content", mode=0o640, uid=1000, gid=7, mtime=1_400_000_000, xattrs={b"user.note": b"\0x"}),
        symlink(b"d/link", b"file", uid=5, gid=6, mtime=1_300_000_000),
        member(b"d/nobody-may", b"x", mode=0, mtime=1_200_000_000),
    )
    extracted(content, target)

    found = facts(target)
    assert found["d"][1:4] == (0o1777, (3, 4), 1_500_000_000 * 10**9)
    assert found["d/file"][1:4] == (0o640, (1000, 7), 1_400_000_000 * 10**9)
    assert found["d/file"].xattrs == (("user.note", b"\0x"),)
    assert found["d/link"][2:5] == ((5, 6), 1_300_000_000 * 10**9, "file")
    assert found["d/nobody-may"].mode == 0


def test_nanoseconds_are_kept(target: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("f")
        info.pax_headers = {"mtime": "1234567890.123456789"}
        tar.addfile(info)
    extracted(tmp_path / "a.tar", target)

    assert (target / "f").stat().st_mtime_ns == 1_234_567_890_123_456_789


def test_a_directory_that_forbids_writing_is_filled_first(target: Path) -> None:
    content = archive(
        directory(b"closed", mode=0o500, mtime=1_000_000_000),
        member(b"closed/file", b"x"),
        directory(b"closed/inner", mode=0),
        member(b"closed/inner/file", b"y"),
        member(b"late/file", b"z"),
        directory(b"late", mode=0o555, mtime=1_100_000_000),
    )
    extracted(content, target)

    assert stat.S_IMODE((target / "closed").stat().st_mode) == 0o500
    assert (target / "closed").stat().st_mtime == 1_000_000_000
    assert stat.S_IMODE((target / "late").stat().st_mode) == 0o555
    assert (target / "late").stat().st_mtime == 1_100_000_000
    assert (target / "closed/file").read_bytes() == b"x"
    (target / "closed").chmod(0o700)
    assert stat.S_IMODE((target / "closed/inner").stat().st_mode) == 0
    (target / "closed/inner").chmod(0o700)
    assert (target / "closed/inner/file").read_bytes() == b"y"


def test_missing_parents_are_ordinary_directories(target: Path) -> None:
    extracted(archive(member(b"a/b/c", b"x")), target)

    assert stat.S_IMODE((target / "a/b").stat().st_mode) == 0o755


def test_hard_links_are_one_file(target: Path) -> None:
    content = archive(
        directory(b"a"),
        directory(b"b"),
        member(b"a/one", b"x"),
        hardlink(b"a/two", b"a/one"),
        hardlink(b"b/three", b"a/two"),
    )
    extracted(content, target)

    inodes = {(target / name).stat().st_ino for name in ("a/one", "a/two", "b/three")}
    assert len(inodes) == 1
    assert (target / "a/one").stat().st_nlink == 3


def test_what_the_header_of_a_hard_link_says_besides_changes_nothing(target: Path) -> None:
    content = archive(member(b"one", b"x", mode=0o600), hardlink(b"two", b"one", mode=0o777, mtime=5))
    extracted(content, target)

    assert stat.S_IMODE((target / "one").stat().st_mode) == 0o600
    assert (target / "one").stat().st_mtime == 1_700_000_000


def test_a_sparse_file_keeps_its_holes(target: Path, tmp_path: Path) -> None:
    original = tmp_path / "sparse"
    with original.open("wb") as file:
        file.seek(1 << 20)
        file.write(b"first" * 1000)
        file.seek(40 << 20)
        file.write(b"last" * 1000)
        file.truncate(64 << 20)
    for form in ("gnu", "pax"):
        place = tmp_path / f"target-{form}"
        status = os.system(f"tar --format={form} -S -C {tmp_path} -cf {tmp_path}/{form}.tar sparse")
        extracted(tmp_path / f"{form}.tar", place)

        assert status == 0
        assert (place / "sparse").read_bytes() == original.read_bytes()
        assert (place / "sparse").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("name", [b"new\nline", b"\xff\xfe", "ünï".encode(), b"-rf", b"...", b"a b", b"back\\slash"])
def test_names_are_bytes_and_stay_so(target: Path, name: bytes) -> None:
    extracted(archive(member(name, b"x")), target)

    assert os.listdir(os.fsencode(target)) == [name]


def test_the_target_itself_stays_as_it_is(target: Path) -> None:
    target.mkdir(mode=0o750)
    before = target.stat()
    extracted(archive(directory(b"./", mode=0o711, uid=77, mtime=5), member(b"./a", b"x")), target)

    after = target.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_group_or_a_mode_is_not_inherited_from_the_target(target: Path) -> None:
    target.mkdir()
    target.chmod(0o2755)
    extracted(archive(directory(b"d", mode=0o755), member(b"d/f", b"x", mode=0o666)), target)

    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "d/f").stat().st_mode) == 0o666


def test_the_umask_of_the_caller_does_not_matter(target: Path) -> None:
    old = os.umask(0o077)
    try:
        extracted(archive(member(b"f", b"x", mode=0o666)), target)
    finally:
        os.umask(old)

    assert stat.S_IMODE((target / "f").stat().st_mode) == 0o666


def test_a_target_with_something_in_it_is_refused_and_left_alone(target: Path) -> None:
    (target / "lost+found").mkdir(parents=True)
    (target / "old").write_text("of an interrupted extraction")
    before = facts(target)

    with pytest.raises(DeviceLost, match="old"):
        extracted(archive(*SMALL_ROOT), target)
    assert facts(target) == before


def test_a_fresh_ext4_is_an_empty_target(target: Path) -> None:
    (target / "lost+found").mkdir(parents=True)
    extracted(archive(*SMALL_ROOT), target)

    assert sorted(os.listdir(target)) == ["lost+found", "rootfs"]


@pytest.mark.sampled("attack")
@pytest.mark.parametrize("attack", [each for each in ATTACKS if not each.layer], ids=lambda each: each.name)
def test_no_attack_reaches_anything_outside(tmp_path: Path, target: Path, attack: Attack) -> None:
    form: Form = attack.forms[0]
    with canaries(tmp_path), pytest.raises(ImageRefused) as refused:
        extracted(attack.build(form), target, policy=attack.policies[0], limits=attack.limits)

    assert refused.value.code == attack.code


@pytest.mark.sampled("attack")
@pytest.mark.parametrize("attack", [each for each in ATTACKS if not each.layer][::7], ids=lambda each: each.name)
def test_inspecting_gives_the_verdict_that_extracting_gives(tmp_path: Path, target: Path, attack: Attack) -> None:
    content = attack.build(attack.forms[0])
    report = inspected_by_child(content, target, attack.policies[0], limits=attack.limits)

    assert not report.acceptable
    assert attack.code in {finding.code for finding in report.findings}


@pytest.mark.parametrize("swap", ["to-link", "away"])
def test_a_directory_that_is_swapped_for_a_link_meanwhile_leads_nowhere_else(
    tmp_path: Path, target: Path, swap: str
) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    target.mkdir()
    members = [directory(b"d%d" % number) for number in range(20)]
    members += [member(b"d%d/f%d" % (number % 20, number), b"x" * 600) for number in range(8000)]
    stop = threading.Event()

    def swapper() -> None:
        number = 0
        while not stop.is_set():
            number = (number + 1) % 20
            victim, aside = target / f"d{number}", target / f"aside{number}"
            try:
                victim.rename(aside)
                if swap == "to-link":
                    victim.symlink_to(outside)
                    victim.unlink()
                aside.rename(victim)
            except OSError:
                continue

    thread = threading.Thread(target=swapper)
    thread.start()
    try:
        extracted(archive(*members), target)
    except ImageError:
        pass  # it may give up; what it may not do is write elsewhere
    finally:
        stop.set()
        thread.join()

    assert os.listdir(outside) == []


def test_limits_hold_while_extracting(target: Path) -> None:
    with pytest.raises(ImageRefused) as refused:
        extracted(archive(member(b"a", b"x" * 600), member(b"b", b"x" * 600)), target, limits=Limits(total_bytes=1000))
    assert refused.value.code == "TOTAL_SIZE"


def test_setuid_stays_only_if_it_is_asked_for(tmp_path: Path) -> None:
    content = archive(member(b"su", b"x", mode=0o4755))
    with pytest.raises(ImageRefused) as refused:
        extracted(content, tmp_path / "target-strict", policy=Policy.STRICT)
    extracted(content, tmp_path / "target-distro")
    extracted(content, tmp_path / "target-kept", keep_setuid=True)

    assert refused.value.code == "SETUID"
    assert stat.S_IMODE((tmp_path / "target-distro/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "target-kept/su").stat().st_mode) == 0o4755
