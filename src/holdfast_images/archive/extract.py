"""From an archive to a tree: each entry is read, judged and written, by the one parser and the one judge.

Run as a program, by `sandbox`, it is the process that reads an archive: it shuts itself in before the first byte,
works, and tells its parent in lines. Standard output is a pipe to the parent, one JSON object a line.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import time
from contextlib import closing
from typing import NoReturn

import msgspec

from holdfast_images.archive.compression import Stream, open_stream
from holdfast_images.archive.confinement import close_others, confine, die_with, limit_file_size
from holdfast_images.archive.decoders import FileHash
from holdfast_images.archive.entry import (
    ArchiveFinding,
    ArchiveSeverity,
    Entry,
    EntryKind,
    Extracted,
    Limits,
    Policy,
    Reason,
    printable,
)
from holdfast_images.archive.image_format import ImageArchive, Progress, Reading, inspect, open_image, verify_contents
from holdfast_images.archive.inspection import MergedLayers
from holdfast_images.archive.parallel import LayeredTree, SecondWriter, SharedTree, make_root, start_second_writer
from holdfast_images.archive.protocol import DoneMessage, FailedMessage, Inspected, Job, Line, meaning, told
from holdfast_images.archive.protocol import Progress as Told
from holdfast_images.archive.reader import TarReader
from holdfast_images.archive.rules import Judge, Verdict
from holdfast_images.archive.tree import Attributes
from holdfast_images.durable import Flusher
from holdfast_images.errors import DeviceLost, ImageBusy, ImageError, ImageRefused, TryAgain

ROOT = b"rootfs"
"""Where layers are applied; a plain tar brings its own."""
WARNINGS = 200
"""Told at most."""


def extract(
    archive: int,
    target: int,
    *,
    spool: int,
    policy: Policy,
    limits: Limits,
    keep_setuid: bool,
    keep_owner: bool,
    progress: Progress,
    second: SecondWriter | None = None,
    checksum: str = "",
) -> Extracted:
    """Extract the archive below the empty directory `target`, and sync it; with the help of a second process, if given.

    `checksum`: its SHA-256. What is written is hashed as it is read; ChecksumMismatch if it was another file's.
    Crash: what was written stays, and is never completed later; only what this returns may be believed.
    """
    image = open_image(archive, spool=spool, limits=limits, checksum=checksum)
    verify_contents(image, limits, Reading(limits, progress), all_layers=False)
    limit_file_size(limits.file_bytes)
    work = Extraction(policy, limits, keep_setuid=keep_setuid, progress=progress)
    work.warn(*image.findings)
    if image.form == "tar":
        tree = SharedTree(target, depth=limits.depth, keep_owner=keep_owner, second=second)
        hashed = FileHash.of_file(archive) if checksum else None
        with Flusher(target), closing(open_stream(archive, limits=limits, hashed=hashed)) as stream:
            work.write(stream, tree)
        work.finish(tree)
        if hashed is not None:
            hashed.refuse_other(f"sha256:{checksum}", "the archive")
    else:
        _apply_layers(image, target, work, limits=limits, keep_owner=keep_owner, second=second)
    return work.extracted()


def _apply_layers(
    image: ImageArchive, target: int, work: Extraction, *, limits: Limits, keep_owner: bool, second: SecondWriter | None
) -> None:
    root = make_root(target, ROOT)
    tree = LayeredTree(root, depth=limits.depth, keep_owner=keep_owner, second=second, below=ROOT + b"/")
    with Flusher(target):
        _write_layers(image, tree, work, limits)
    work.finish(tree)
    os.close(root)


def _write_layers(image: ImageArchive, tree: LayeredTree, work: Extraction, limits: Limits) -> None:
    for layer in image.layers:
        tree.begin_layer()
        stored = image.stored_hash(layer)
        with closing(image.open_layer(layer, limits, stored)) as stream:
            work.write(stream, tree, layer=layer.name)
        stored.refuse_other(layer.stored, f"the layer {layer.name}")
    work.judge_all_layers(tree)


class Extraction:
    """What one extraction has done so far, over all layers."""

    def __init__(self, policy: Policy, limits: Limits, *, keep_setuid: bool, progress: Progress) -> None:
        self._policy = policy
        self._limits = limits
        self._keep_setuid = keep_setuid
        self._progress = progress
        self._entries = 0
        self._files = 0
        self._bytes = 0
        self._warnings: list[ArchiveFinding] = []
        self._merged = MergedLayers(policy, limits)

    def write(self, stream: Stream, tree: SharedTree, *, layer: str = "") -> None:
        """Write every entry of a tar; the first that breaks a rule ends it."""
        judge = Judge(self._policy, self._limits, keep_setuid=self._keep_setuid, layer=bool(layer))
        reader = TarReader(stream, self._limits)
        merged = self._merged if layer else None
        if merged is not None:
            merged.begin_layer()
        total = stream.length or 0
        # What the layers before have left of the limits; the judge and the reader know only their own.
        entries_left = self._limits.entries - self._entries
        bytes_left = self._limits.total_bytes - self._bytes
        entries = files = size = 0
        entry: Entry | None = None
        try:
            for entry in reader:
                verdict = judge.judge(entry)
                if verdict.findings:
                    self._heed(verdict.findings, layer)
                if merged is not None:
                    self._heed(merged.apply(entry, verdict), layer)
                entries += 1
                if entry.kind is not EntryKind.DIRECTORY:
                    files += 1
                    size += entry.size
                implied = judge.implied if merged is None else merged.implied
                if entries + implied > entries_left or judge.total_bytes > bytes_left:
                    self._refuse_excess(too_many=entries + implied > entries_left)
                if not verdict.left_out:
                    _write(tree, entry, verdict, reader)
                if not entries & 31 or entry.size > 1 << 20:
                    self._progress(stream.position, total, self._entries + entries)
            entry = None
            self._heed(judge.finish(), layer)
        except OSError as error:
            tree.settle()  # an entry before this one may have failed: that one is told
            raise _failure(error, entry) from error
        except ImageRefused as refused:
            tree.settle()
            raise _located(refused, entry, layer) from None
        self._entries += entries
        self._files += files
        self._bytes += size

    def judge_all_layers(self, tree: SharedTree) -> None:
        """What can only be judged, and counted, when all layers are in place."""
        try:
            self._heed(tuple(self._merged.finish()), "")
        except ImageRefused:
            tree.settle()
            raise
        self._files, self._bytes = self._merged.totals()

    def finish(self, tree: SharedTree) -> None:
        """Everything written is as it should be and on the disk."""
        try:
            tree.finish()
        except OSError as error:
            raise _failure(error, None) from error
        # In front: however many warnings there are, these are told.
        if tree.xattrs_lost:
            detail = f"{tree.xattrs_lost} extended attributes could not be set here"
            self._warnings.insert(0, _warning(Reason.XATTR_NOT_KEPT, detail))
        if tree.owners_lost:
            detail = f"{tree.owners_lost} entries belong to the user who extracted them"
            self._warnings.insert(0, _warning(Reason.OWNER_NOT_KEPT, detail))

    def warn(self, *findings: ArchiveFinding) -> None:
        """Keep what is to be told, up to a limit."""
        self._warnings.extend(findings[: max(0, WARNINGS - len(self._warnings))])

    def extracted(self) -> Extracted:
        """What was made: of layers, what is there in the end."""
        return Extracted(file_count=self._files, total_bytes=self._bytes, warnings=tuple(self._warnings))

    def _heed(self, findings: tuple[ArchiveFinding, ...], layer: str) -> None:
        for finding in findings:
            if finding.severity is ArchiveSeverity.ERROR:
                where = f"{layer}:{finding.path}" if layer else finding.path
                raise ImageRefused(finding.code, finding.detail, entry=where, offset=finding.offset)
        self.warn(*(msgspec.structs.replace(each, path=f"{layer}:{each.path}") if layer else each for each in findings))

    def _refuse_excess(self, *, too_many: bool) -> NoReturn:
        if too_many:
            raise ImageRefused(Reason.TOO_MANY_ENTRIES, f"there are more than {self._limits.entries} entries")
        raise ImageRefused(Reason.TOTAL_SIZE, f"the files have more than {self._limits.total_bytes} bytes together")


def _write(tree: SharedTree, entry: Entry, verdict: Verdict, reader: TarReader) -> None:
    path = verdict.path
    kind = entry.kind
    if verdict.whiteout:
        assert isinstance(tree, LayeredTree)
        tree.hide(path)
    elif kind is EntryKind.FILE:
        attributes = Attributes(verdict.mode, entry.uid, entry.gid, verdict.mtime_ns, verdict.xattrs)
        tree.add_file(path, attributes, entry.size, reader.body(), entry.sparse)
    elif kind is EntryKind.HARDLINK:
        tree.add_hardlink(path, verdict.link)
    elif kind is EntryKind.DIRECTORY:
        attributes = Attributes(verdict.mode, entry.uid, entry.gid, verdict.mtime_ns, verdict.xattrs)
        tree.add_directory(path, attributes)
    elif kind is EntryKind.SYMLINK:
        attributes = Attributes(verdict.mode, entry.uid, entry.gid, verdict.mtime_ns, verdict.xattrs)
        tree.add_symlink(path, attributes, entry.linkname)
    else:
        raise ImageRefused(Reason.UNSUPPORTED_TYPE, "nothing but files, directories and links is ever made")


def _failure(error: OSError, entry: Entry | None) -> Exception:
    return meaning(error, printable(entry.name), entry.offset) if entry else meaning(error, "the whole tree", None)


def _located(refused: ImageRefused, entry: Entry | None, layer: str) -> ImageRefused:
    """The same, with the entry at which it happened."""
    if refused.offset is not None or refused.entry or entry is None:
        return refused
    name = printable(entry.name)
    return ImageRefused(
        refused.code,
        refused.detail,
        entry=f"{layer}:{name}" if layer else name,
        offset=entry.offset,
        hint=refused.hint,
    )


def _warning(code: str, detail: str) -> ArchiveFinding:
    return ArchiveFinding(code=code, severity=ArchiveSeverity.WARNING, path="", offset=None, detail=detail)


# --- The confined process -------------------------------------------------------------------------------

PROGRESS_EVERY = 0.1
LOCK_PATIENCE = 3.0
"""A predecessor whose owner was killed dies within moments; whoever holds the lock longer is alive."""


class Teller:
    """Writes lines to the parent. Progress is dropped rather than waited for; the end is not."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._next = 0.0
        os.set_blocking(descriptor, False)

    def progress(self, done: int, total: int, entries: int) -> None:
        """Tell it now and then."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_EVERY
        try:
            # Shorter than PIPE_BUF: either all of it is written or nothing.
            os.write(self._descriptor, _encode(Told(done, total, entries)))
        except BlockingIOError:
            pass

    def end(self, line: Inspected | DoneMessage | FailedMessage) -> None:
        """Tell how it ended."""
        rest = memoryview(_encode(line))
        while rest:
            select.select([], [self._descriptor], [])
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                continue


def _encode(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def main(argument: str) -> None:
    """Do the job, and tell how it ended."""
    # What is imported by now stays; it need not be looked through again and again.
    gc.freeze()
    gc.enable()
    job = msgspec.json.decode(argument, type=Job)
    die_with(job.parent)
    if job.alarm is not None:
        signal.setitimer(signal.ITIMER_REAL, job.alarm)
    teller = Teller(1)
    try:
        end = _work(job, teller)
    except ImageError as error:
        end = told(error)
    except MemoryError:
        end = FailedMessage(error="ImageRefused", code=Reason.MEMORY_LIMIT, message="reading it takes too much memory")
    except OSError as error:
        end = FailedMessage(
            error=TryAgain.__name__, message=f"the archive could not be read: {error.strerror or error}"
        )
    teller.end(end)


def _work(job: Job, teller: Teller) -> Inspected | DoneMessage | FailedMessage:
    close_others({job.archive, job.target, job.spool})
    privileged = os.geteuid() == 0
    second: SecondWriter | None = None

    def prepare(target: int) -> None:
        nonlocal second
        _own(target)
        if job.processes > 1:
            second = start_second_writer(target, limits=job.limits, keep_owner=privileged)

    target, measures = confine(
        job.target,
        writing=job.writing,
        depth=job.limits.depth,
        keep_capabilities_of_files=job.keep_setuid,
        before_filter=prepare if job.writing else None,
    )
    # Again: some of the changes above clear it.
    die_with(job.parent)
    limit_file_size(max(job.limits.file_bytes, job.limits.image_bytes))
    if job.writing:
        extracted = extract(
            job.archive,
            target,
            spool=job.spool,
            policy=job.policy,
            limits=job.limits,
            keep_setuid=job.keep_setuid,
            keep_owner=privileged,
            second=second,
            checksum=job.checksum,
            progress=teller.progress,
        )
        return DoneMessage(msgspec.structs.replace(extracted, confinement=tuple(measures)))
    report = inspect(
        job.archive,
        spool=job.spool,
        policy=job.policy,
        limits=job.limits,
        keep_setuid=job.keep_setuid,
        progress=teller.progress,
    )
    return Inspected(msgspec.structs.replace(report, confinement=tuple(measures)))


def _own(target: int) -> None:
    """Nobody else writes there as long as this process lives, and nobody has written there before."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ImageBusy(
                    "another process extracts to the same directory", hint="wait for it, or end it, and try again"
                ) from None
            time.sleep(0.02)
    # mkfs makes this one.
    rest = set(os.listdir(target)) - {"lost+found"}
    if rest:
        raise DeviceLost(
            f"the target is not empty: it has {min(rest)!r}",
            hint="what an interrupted extraction has left is never completed: make the device anew",
        )
