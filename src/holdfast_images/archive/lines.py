"""What a parent and the child that reads an archive for it say to each other: a job, and lines of JSON."""

from __future__ import annotations

import msgspec

from holdfast_images.archive.entry import Extracted, Limits, Policy, Report


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent wants, in the child's one argument. Descriptors are the child's own, by inheritance."""

    parent: int
    archive: int
    target: int
    """Where to extract to; to inspect, a directory that was removed."""
    spool: int
    """An unnamed file for what has to be decompressed before it can be read in the order it needs."""
    writing: bool
    policy: Policy = Policy.STRICT
    limits: Limits = Limits()
    keep_setuid: bool = False
    processes: int = 1
    """Two, if a second one is to write, too."""
    checksum: str = ""
    """SHA-256 of the archive, to extract: of no other is anything believed."""
    alarm: float | None = None
    """Seconds until the child ends itself, in case the parent cannot do it."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Some more has been done."""

    done: int
    total: int
    entries: int


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """The end, of an inspection."""

    report: Report


class Done(msgspec.Struct, frozen=True, tag="extracted"):
    """The end, of an extraction that may be believed."""

    extracted: Extracted


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The end, of anything else."""

    error: str
    message: str
    hint: str | None = None
    code: str = ""
    entry: str = ""
    offset: int | None = None


Line = Progress | Inspected | Done | Failed
