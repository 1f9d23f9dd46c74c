"""Honest archives are read as Python's tarfile and GNU tar mean them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_images.archive.entry import EntryKind
from tests.hostile.readers import filled
from tests.support.images.archives import COMPRESSIONS, Compression, compressed, entries_of

TYPES = {
    EntryKind.FILE: tarfile.REGTYPE,
    EntryKind.DIRECTORY: tarfile.DIRTYPE,
    EntryKind.SYMLINK: tarfile.SYMTYPE,
    EntryKind.HARDLINK: tarfile.LNKTYPE,
    EntryKind.CHARACTER_DEVICE: tarfile.CHRTYPE,
    EntryKind.BLOCK_DEVICE: tarfile.BLKTYPE,
    EntryKind.FIFO: tarfile.FIFOTYPE,
}

COMPONENT = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60
)
NAME = st.lists(COMPONENT, min_size=1, max_size=6).map("/".join)


@st.composite
def members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(draw(NAME))
    kind = draw(st.sampled_from(list(TYPES)))
    info.type = TYPES[kind]
    info.mode = draw(st.integers(0, 0o7777))
    info.uid = draw(st.integers(0, 2**32 - 2))
    info.gid = draw(st.integers(0, 2**21 - 1))
    info.mtime = draw(st.integers(0, 8**11 - 1))
    content = draw(st.binary(max_size=2000)) if kind is EntryKind.FILE else b""
    info.size = len(content)
    if kind in {EntryKind.SYMLINK, EntryKind.HARDLINK}:
        info.linkname = draw(NAME)
    if kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
        info.devmajor, info.devminor = draw(st.integers(0, 8**7 - 1)), draw(st.integers(0, 255))
    return info, content


def as_tarfile_reads(content: bytes) -> list[tuple[object, ...]]:
    facts: list[tuple[object, ...]] = []
    with tarfile.open(fileobj=io.BytesIO(content), errors="surrogateescape", encoding="utf-8") as archive:
        for info in archive:
            file = archive.extractfile(info) if info.isreg() else None
            # tarfile takes the slash off the names of directories, and sets the size of what has no content as it is.
            facts.append(
                (
                    info.name.encode("utf-8", "surrogateescape").rstrip(b"/"),
                    tarfile.REGTYPE if info.isreg() else info.type,
                    info.mode,
                    info.uid,
                    info.gid,
                    int(info.mtime),
                    info.linkname.encode("utf-8", "surrogateescape"),
                    (info.devmajor, info.devminor) if info.isdev() and not info.isfifo() else (0, 0),
                    file.read() if file else b"",
                )
            )
    return facts


def as_we_read(content: bytes) -> list[tuple[object, ...]]:
    return [
        (
            entry.name.rstrip(b"/"),
            TYPES[entry.kind],
            entry.mode,
            entry.uid,
            entry.gid,
            entry.mtime_ns // 1_000_000_000,
            entry.linkname,
            entry.device,
            filled(entry, body),
        )
        for entry, body in entries_of(content)
    ]


def written(infos: list[tuple[tarfile.TarInfo, bytes]], form: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as archive:
        for info, content in infos:
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@given(infos=st.lists(members(), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_what_tarfile_writes_is_read_as_tarfile_reads_it(form: int, infos: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    content = written(infos, form)

    assert as_we_read(content) == as_tarfile_reads(content)


@given(infos=st.lists(members(), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_what_tarfile_writes_as_ustar_is_read_as_tarfile_reads_it(
    infos: list[tuple[tarfile.TarInfo, bytes]],
) -> None:
    fitting = []
    for info, content in infos:
        info.uid %= 2**21
        info.linkname = info.linkname.encode()[:100].decode("utf-8", "ignore")
        try:
            info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
        except ValueError:
            continue  # the name cannot be split into prefix and name
        fitting.append((info, content))
    content = written([*fitting, (tarfile.TarInfo("last"), b"")], tarfile.USTAR_FORMAT)

    assert as_we_read(content) == as_tarfile_reads(content)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all sorts, with long names, holes, links and odd sizes."""
    root = tmp_path_factory.mktemp("tree")
    deep = root / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    (deep / ("f" * 200)).write_bytes(b"deep" * 1000)
    for size in (0, 1, 511, 512, 513, 70_000):
        (root / f"size-{size}").write_bytes(os.urandom(size))
    (root / "grün\n\x1b").write_bytes(b"odd name")
    os.link(root / "size-513", root / "hard")
    os.symlink("size-513", root / "soft")
    os.symlink("x" * 300, root / "long-soft")
    os.mkfifo(root / "fifo")
    with (root / "holes").open("wb") as file:
        for at in range(40):
            file.seek(at * 65_536 + 8192)
            file.write(b"%04d" % at * 1024)
        file.truncate(3 << 20)
    with (root / "only-a-hole").open("wb") as file:
        file.truncate(1 << 20)
    for at, path in enumerate(sorted(root.rglob("*"))):
        if not path.is_symlink():
            os.utime(path, ns=(0, 1_600_000_000_123_456_789 + at))
    return root


OPTIONS = [
    ["--format=gnu"],
    ["--format=posix"],
    ["--format=posix", "--pax-option=delete=atime,delete=ctime"],
    ["--format=gnu", "--sparse"],
    ["--format=posix", "--sparse", "--sparse-version=0.0"],
    ["--format=posix", "--sparse", "--sparse-version=0.1"],
    ["--format=posix", "--sparse", "--sparse-version=1.0"],
    ["--format=posix", "--xattrs"],
]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_what_gnu_tar_writes_is_what_is_on_disk(tree: Path, options: list[str], compression: Compression) -> None:
    command = ["tar", *options, "--sort=name", "-C", str(tree), "-cf", "-", "."]
    content = compressed(subprocess.run(command, capture_output=True, check=True).stdout, compression)
    found = {entry.name: (entry, filled(entry, body)) for entry, body in entries_of(content)}
    expected = {b"./"} | {
        b"./" + os.fsencode(path.relative_to(tree)) + (b"/" if not path.is_symlink() and path.is_dir() else b"")
        for path in tree.rglob("*")
    }

    assert found.keys() == expected
    for name, (entry, body) in found.items():
        path = tree / os.fsdecode(name)
        status = path.lstat()
        assert (entry.uid, entry.gid, entry.mode) == (status.st_uid, status.st_gid, status.st_mode & 0o7777)
        precise = "--format=posix" in options
        assert entry.mtime_ns == (status.st_mtime_ns if precise else status.st_mtime_ns // 10**9 * 10**9)
        if entry.kind is EntryKind.FILE:
            assert body == path.read_bytes()
        elif entry.kind is EntryKind.SYMLINK:
            assert os.fsdecode(entry.linkname) == os.readlink(path)
        elif entry.kind is EntryKind.HARDLINK:
            assert os.path.samefile(tree / os.fsdecode(entry.linkname), path)


@pytest.mark.parametrize("options", OPTIONS[3:7], ids=" ".join)
def test_holes_are_not_stored(tree: Path, options: list[str]) -> None:
    command = ["tar", *options, "-C", str(tree), "-cf", "-", "only-a-hole", "holes"]
    entries = {
        entry.name: entry for entry, _ in entries_of(subprocess.run(command, capture_output=True, check=True).stdout)
    }
    hole = entries[b"only-a-hole"]

    assert (hole.size, hole.stored) == (1 << 20, 0)
    assert entries[b"holes"].stored < entries[b"holes"].size


@pytest.mark.parametrize("form", ["ustar", "v7"])
def test_the_small_forms_of_gnu_tar_are_read(tree: Path, form: str) -> None:
    names = ["size-0", "size-513", "hard", "soft", "size-70000"]
    command = ["tar", f"--format={form}", "-C", str(tree), "-cf", "-", *names]
    content = subprocess.run(command, capture_output=True, check=True).stdout

    assert as_we_read(content) == as_tarfile_reads(content)


def test_extended_attributes_of_gnu_tar_are_read(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x")
    try:
        os.setxattr(file, "user.color", b"gr\0n")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    command = ["tar", "--xattrs", "--format=posix", "-C", str(tmp_path), "-cf", "-", "f"]
    ((entry, _),) = entries_of(subprocess.run(command, capture_output=True, check=True).stdout)

    assert entry.xattrs == ((b"user.color", b"gr\0n"),)
