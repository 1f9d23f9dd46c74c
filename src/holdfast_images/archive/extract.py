"""Layers, one upon the other: whiteouts, opaque directories, and what a layer may do to the ones below it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from typing import NoReturn

import msgspec

from holdfast_images.archive import confinement
from holdfast_images.archive.compression import Stream, open_stream
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
from holdfast_images.archive.entry_rules import CRITICAL
from holdfast_images.archive.image_format import ImageArchive, Progress, Reading, open_image, verify_contents
from holdfast_images.archive.inspection import MergedLayers
from holdfast_images.archive.parallel import SecondWriter, SharedTree
from holdfast_images.archive.protocol import meaning
from holdfast_images.archive.reader import TarReader
from holdfast_images.archive.rules import OPAQUE, WHITEOUT, Judge, Verdict
from holdfast_images.archive.tree import OPEN_DIRECTORY, Attributes
from holdfast_images.durable import Flusher
from holdfast_images.errors import ImageRefused


class LayeredTree(SharedTree):
    """A tree that layers are applied to in their order.

    Unlike in a plain tree, an entry may replace whatever a lower layer has put there, and a symbolic link of a lower
    layer on the way to an entry is followed as by a process whose root is this tree: component by component, absolute
    targets from the root, and never above it.
    """

    _follows = True

    def __init__(
        self, root: int, *, depth: int, keep_owner: bool, second: SecondWriter | None = None, below: bytes = b""
    ) -> None:
        super().__init__(root, depth=depth, keep_owner=keep_owner, second=second, below=below)
        self._written: set[bytes] = set()
        self._above: set[bytes] = set()

    def begin_layer(self) -> None:
        """What is there from now on belongs to the lower layers."""
        if self._written:
            # The first layer is mostly the largest. What later ones replace or hide is to be done in their order.
            self.stop_sharing()
        self._written.clear()
        self._above.clear()

    def add_file(
        self,
        path: bytes,
        attributes: Attributes,
        size: int,
        content: Iterable[memoryview],
        pieces: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """As in a plain tree."""
        super().add_file(path, attributes, size, content, pieces)
        self._note(path, attributes.mode)

    def add_directory(self, path: bytes, attributes: Attributes) -> None:
        """As in a plain tree; the root itself may be told about too."""
        if not path:
            self._directories[b""] = attributes
            return
        super().add_directory(path, attributes)
        self._note(path, attributes.mode)

    def add_symlink(self, path: bytes, attributes: Attributes, target: bytes) -> None:
        """As in a plain tree."""
        super().add_symlink(path, attributes, target)
        self._note(path, 0)

    def add_hardlink(self, path: bytes, target: bytes) -> None:
        """As in a plain tree; the file may be a lower layer's."""
        super().add_hardlink(path, target)
        parent, name = self._place(path)
        self._note(path, os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)

    def hide(self, path: bytes) -> None:
        """Take away what lower layers have; the path is that of a whiteout, or of the mark of an opaque directory."""
        directory, _, mark = path.rpartition(b"/")
        found = self._walk(directory, make=False)
        if found is None:
            return
        here, descriptor = found
        if mark == OPAQUE:
            self._remove_lower_content(descriptor, here)
        else:
            name = mark.removeprefix(WHITEOUT)
            self._remove_lower(descriptor, name, here + b"/" + name if here else name)

    # --- hiding ---------------------------------------------------------------------------------------------

    def _remove_lower_content(self, descriptor: int, here: bytes) -> None:
        for name in _names(descriptor):
            self._remove_lower(descriptor, name, here + b"/" + name if here else name)

    def _remove_lower(self, parent: int, name: bytes, real: bytes) -> None:
        """Remove what lower layers have there; what this layer has written before its whiteout stays."""
        if real not in self._written and real not in self._above:
            self._remove(parent, name, real)
            return
        try:
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except (NotADirectoryError, FileNotFoundError):
            return  # this layer's own, or what this layer itself has replaced by another name
        try:
            self._remove_lower_content(descriptor, real)
        finally:
            os.close(descriptor)

    def _remove(self, parent: int, name: bytes, real: bytes) -> None:
        """Remove it and everything below, by descriptors: a symbolic link is removed, never followed."""
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
            try:
                for inner in _names(descriptor):
                    self._remove(descriptor, inner, real + b"/" + inner)
            finally:
                os.close(descriptor)
            self._forget(real)
            os.rmdir(name, dir_fd=parent)
        self._asked = None

    # --- what a layered tree does differently ---------------------------------------------------------------

    def _make_room(self, parent: int, name: bytes) -> None:
        # _asked and _here stay right: what is replaced lies in that directory, not above it.
        asked = self._asked
        self._remove(parent, name, self._real(name))
        self._asked = asked

    def _reopen(self, path: bytes) -> int | None:
        try:
            return self._open_real(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # a later layer has removed or replaced it

    def _note(self, path: bytes, mode: int) -> None:
        """Remember the entry just written as this layer's own."""
        here = self._here
        real = self._real(path.rpartition(b"/")[2])
        # The rules have judged the name in the layer; links of lower layers may have led it elsewhere.
        if mode & 0o002 and real in CRITICAL:
            raise ImageRefused(Reason.WORLD_WRITABLE_CRITICAL, f"everybody may write to {printable(real)}")
        self._written.add(real)
        while here not in self._above:
            self._above.add(here)
            if not here:
                break
            here = here.rpartition(b"/")[0]


def _names(descriptor: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(descriptor)]


def make_root(target: int, name: bytes) -> int:
    """The directory the layers are applied to; it must not be there yet."""
    os.mkdir(name, 0o755, dir_fd=target)
    return os.open(name, OPEN_DIRECTORY, dir_fd=target)


# --- From an archive to a tree: each entry is read, judged and written, by the one parser and the one judge ---

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
    confinement.limit_file_size(limits.file_bytes)
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
