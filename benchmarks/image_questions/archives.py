"""The images that are measured: root file systems of many small files, or of fewer large ones, of half-random text."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

FILES_PER_DIRECTORY = 49
_NOISE = random.Random(7).randbytes(1 << 22)
_TEXT = b"".join(b"line %07d of some text, as packages have it in their files\n" % number for number in range(70_000))


def small_files(place: Path, entries: int, form: int = tarfile.GNU_FORMAT) -> Path:
    """An archive of so many entries: files of 5 kB on average, and their directories."""
    return _made(place / f"small-{entries}-{form}.tar", entries, 5_000, form)


def large_files(place: Path, entries: int) -> Path:
    """An archive of files of 200 kB on average."""
    return _made(place / f"large-{entries}.tar", entries, 200_000, tarfile.GNU_FORMAT)


def gzipped(archive: Path) -> Path:
    """The same, compressed as the gzip program does by default; made once."""
    target = archive.with_name(f"{archive.name}.gz")
    if not target.exists():
        with target.open("wb") as file:
            subprocess.run(["gzip", "-c", str(archive)], check=True, stdout=file)
    return target


def _made(path: Path, entries: int, size: int, form: int) -> Path:
    if path.exists():
        return path
    chance = random.Random(entries)
    with tarfile.open(path, "w", format=form) as archive:
        for name in _names(entries):
            member = tarfile.TarInfo(name)
            # A fraction is what makes writers put a pax header in front of each entry.
            member.mtime = (
                1_600_000_000 + chance.randrange(10**8) + (chance.random() if form == tarfile.PAX_FORMAT else 0)
            )
            member.uid = member.gid = chance.choice([0, 0, 0, 1000])
            if "." in name:
                member.size = chance.randrange(size // 2, size * 3 // 2)
                member.mode = chance.choice([0o644, 0o644, 0o755, 0o600])
                archive.addfile(member, io.BytesIO(_content(chance, member.size)))
            else:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
    return path


def _names(entries: int) -> Iterator[str]:
    fixed = ["rootfs", "rootfs/etc", "rootfs/usr", "rootfs/var", "rootfs/usr/share"]
    yield from fixed
    for number in range(entries - len(fixed)):
        package, file = divmod(number, FILES_PER_DIRECTORY + 1)
        directory = f"rootfs/usr/share/package-{package:04d}"
        yield f"{directory}/some-file-{file:03d}.txt" if file else directory


def _content(chance: random.Random, size: int) -> bytes:
    """Three quarters text, one quarter noise: gzip makes a quarter to a third of it."""
    noise = size // 4
    at = chance.randrange(len(_NOISE) - size)
    return _TEXT[at : at + size - noise] + _NOISE[at : at + noise]
