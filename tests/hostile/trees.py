"""What different programs make of one archive on disk. All of it happens inside of a root to throw away."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import NamedTuple

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.extract import extract
from holdfast_images.errors import ImageRefused
from tests.support.images.extracting import Fact, facts
from tests.support.images.throwaway_root import empty_directory, run

Tree = dict[str, Fact]
ARCHIVE = "/archive.tar"


class Unpacked(NamedTuple):
    """The tree, and what was complained about."""

    tree: Tree
    complaint: str = ""


def by_us(limits: Limits, *, layers: bool = False) -> Unpacked:
    """By the extractor itself."""
    place = empty_directory("/ours")
    archive = os.open(ARCHIVE, os.O_RDONLY)
    spool = os.open("/spool", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    target = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        extract(
            archive,
            target,
            spool=spool,
            policy=Policy.STRICT,
            limits=limits,
            keep_setuid=False,
            keep_owner=True,
            progress=lambda *_: None,
        )
    except ImageRefused as refused:
        return Unpacked({}, str(refused))
    finally:
        for descriptor in (archive, spool, target):
            os.close(descriptor)
    return Unpacked(_tree(place / "rootfs" if layers else place))


def by_gnu_tar() -> Unpacked:
    place = empty_directory("/gnu")
    # Times of directories are set when everything in them is there, as all others do.
    options = ("--numeric-owner", "--delay-directory-restore", "--xattrs", "--xattrs-include=user.*")
    done = run("tar", "-xpf", ARCHIVE, "-C", "/gnu", *options)
    return Unpacked(_tree(place), done.stderr.decode("utf-8", "replace") if done.returncode else "")


def by_bsdtar() -> Unpacked:
    place = empty_directory("/bsd")
    done = run("bsdtar", "-xpf", ARCHIVE, "-C", "/bsd", "--numeric-owner", "--no-acls", "--no-fflags")
    return Unpacked(_tree(place), done.stderr.decode("utf-8", "replace") if done.returncode else "")


def by_tarfile() -> Unpacked:
    place = empty_directory("/python")
    os.umask(0o022)
    try:
        with tarfile.open(ARCHIVE, encoding="utf-8", errors="surrogateescape") as archive:
            archive.extractall(place, numeric_owner=True, filter="fully_trusted")
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        return Unpacked({}, f"{type(error).__name__}: {error}")
    return Unpacked(_tree(place))


def by_umoci(source: str) -> Unpacked:
    """By way of skopeo: `source` is how it calls the archive, "oci-archive" or "docker-archive"."""
    empty_directory("/layout")
    place = empty_directory("/umoci")
    copied = run("skopeo", "copy", "--insecure-policy", "--quiet", f"{source}:{ARCHIVE}", "oci:/layout:x")
    if copied.returncode:
        return Unpacked({}, f"skopeo: {copied.stderr.decode('utf-8', 'replace')}")
    place.rmdir()
    done = run("umoci", "raw", "unpack", "--image", "/layout:x", "/umoci")
    return Unpacked(_tree(place), done.stderr.decode("utf-8", "replace") if done.returncode else "")


def _tree(place: Path) -> Tree:
    return facts(place) if place.exists() else {}
