"""From an archive to a tree: each entry is read, judged and written, by the one parser and the one judge."""

from __future__ import annotations

import os
from contextlib import closing
from typing import NoReturn

import msgspec

from holdfast_images.archive import confining
from holdfast_images.archive.compression import Stream, open_stream
from holdfast_images.archive.entry import Entry, Extracted, Finding, Kind, Limits, Policy, Severity
from holdfast_images.archive.failing import meaning
from holdfast_images.archive.file_hash import FileHash
from holdfast_images.archive.images import Image, Progress, Reading, open_image, verify_contents
from holdfast_images.archive.layers import LayeredTree, make_root
from holdfast_images.archive.merged import MergedLayers
from holdfast_images.archive.names import printable
from holdfast_images.archive.reading import TarReader
from holdfast_images.archive.reasons import Reason
from holdfast_images.archive.rules import Judge, Verdict
from holdfast_images.archive.second_writer import SecondWriter
from holdfast_images.archive.sharing import SharedTree
from holdfast_images.archive.tree import Attributes
from holdfast_images.errors import ImageRefused
from holdfast_images.flushing import Flusher

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
    confining.limit_file_size(limits.file_bytes)
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
    image: Image, target: int, work: Extraction, *, limits: Limits, keep_owner: bool, second: SecondWriter | None
) -> None:
    root = make_root(target, ROOT)
    tree = LayeredTree(root, depth=limits.depth, keep_owner=keep_owner, second=second, below=ROOT + b"/")
    with Flusher(target):
        _write_layers(image, tree, work, limits)
    work.finish(tree)
    os.close(root)


def _write_layers(image: Image, tree: LayeredTree, work: Extraction, limits: Limits) -> None:
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
        self._warnings: list[Finding] = []
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
                if entry.kind is not Kind.DIRECTORY:
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

    def warn(self, *findings: Finding) -> None:
        """Keep what is to be told, up to a limit."""
        self._warnings.extend(findings[: max(0, WARNINGS - len(self._warnings))])

    def extracted(self) -> Extracted:
        """What was made: of layers, what is there in the end."""
        return Extracted(file_count=self._files, total_bytes=self._bytes, warnings=tuple(self._warnings))

    def _heed(self, findings: tuple[Finding, ...], layer: str) -> None:
        for finding in findings:
            if finding.severity is Severity.ERROR:
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
    elif kind is Kind.FILE:
        attributes = Attributes(verdict.mode, entry.uid, entry.gid, verdict.mtime_ns, verdict.xattrs)
        tree.add_file(path, attributes, entry.size, reader.body(), entry.sparse)
    elif kind is Kind.HARDLINK:
        tree.add_hardlink(path, verdict.link)
    elif kind is Kind.DIRECTORY:
        attributes = Attributes(verdict.mode, entry.uid, entry.gid, verdict.mtime_ns, verdict.xattrs)
        tree.add_directory(path, attributes)
    elif kind is Kind.SYMLINK:
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


def _warning(code: str, detail: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, path="", offset=None, detail=detail)
