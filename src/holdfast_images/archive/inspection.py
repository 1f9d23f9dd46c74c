"""The tree that layers make together, without making it: what can only be judged of all of them. Pure.

Mirrors what LayeredTree does on disk: an entry replaces what lower layers have at its place, and links of lower layers
on the way to it are followed inside the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast_images.archive.compression import Stream
from holdfast_images.archive.entry import (
    ArchiveFinding,
    ArchiveSeverity,
    Entry,
    EntryKind,
    InspectionReport,
    Limits,
    Policy,
    Reason,
    printable,
)
from holdfast_images.archive.entry_rules import LINKS_FOLLOWED, Seen, differing_header, error
from holdfast_images.archive.reader import TarReader
from holdfast_images.archive.rules import OPAQUE, WHITEOUT, Judge, Verdict, finding_of, too_many_name_bytes
from holdfast_images.errors import ImageRefused


class MergedLayers(Seen):
    """Every name of the image with all layers so far, free of links on its way."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        super().__init__(layer=True)
        self._policy = policy
        self._limits = limits
        self._inside: dict[bytes, set[bytes]] = {}
        """Directory that is not empty -> the paths of what is in it."""
        self._own: set[bytes] = set()
        """What this layer has written, and the directories above it."""
        self._asked: bytes | None = None
        self._here = b""
        self._name_bytes = 0
        self.implied = 0
        """Directories that no entry has named, and no lower layer had."""

    def begin_layer(self) -> None:
        """What is there from now on belongs to the lower layers."""
        self._own.clear()
        self._asked = None

    def apply(self, entry: Entry, verdict: Verdict) -> tuple[ArchiveFinding, ...]:
        """Add an accepted entry of the layer; ImageRefused where no tree can be made of it."""
        if verdict.left_out:
            return ()
        parent, _, name = verdict.path.rpartition(b"/")
        if verdict.whiteout:
            self._hide(parent, name)
            return ()
        if not verdict.path:
            self.set_mode(b"", verdict.mode)
            return ()
        findings: tuple[ArchiveFinding, ...] = ()
        stamp = verdict.stamp
        kind = entry.kind
        mode = verdict.mode
        first = b""
        if kind is EntryKind.HARDLINK:
            first = self._real(verdict.link)
            if self.kinds.get(first) is not EntryKind.FILE:
                raise ImageRefused(Reason.HARDLINK_TARGET, f"-> {printable(first)} is no file of the image")
            if first not in self._own:  # else the layer itself has compared them
                differing = differing_header(self._policy, stamp, self.stamps[first])
                findings = tuple(finding_of(remark, entry.name, entry.offset) for remark in differing)
            stamp, mode, kind = self.stamps[first], self.open_to_all.get(first, 0), EntryKind.FILE
        real = self._real(verdict.path)
        if entry.kind is EntryKind.HARDLINK and first.startswith(real + b"/"):
            raise ImageRefused(Reason.HARDLINK_TARGET, f"-> {printable(first)} is in the directory that it replaces")
        before = self.kinds.get(real)
        if before is not None and (before is not EntryKind.DIRECTORY or kind is not EntryKind.DIRECTORY):
            self._remove(real)
        self._put(real, kind, mode)
        if kind is EntryKind.FILE:
            self.stamps[real] = stamp
        elif kind is EntryKind.SYMLINK:
            self.symlinks[real] = entry.linkname
        return findings

    def finish(self) -> list[ArchiveFinding]:
        """What is wrong with the finished tree: links are judged where they are, with all others in place."""
        found: list[ArchiveFinding] = []
        for path, target in self.symlinks.items():
            if self.is_winding():
                detail = f"following the links of the image takes more than {self.steps} steps"
                return [*found, finding_of(error(Reason.TOO_WINDING, detail), path, None)]
            if self.climbs_out(path, target):
                detail = f"-> {printable(target[:256])} leads above the root of the image, with all layers in place"
                found.append(finding_of(error(Reason.SYMLINK_ESCAPES, detail), path, None))
        return found + [finding_of(remark, path, None) for path, remark in self.trusted_but_open()]

    def totals(self) -> tuple[int, int]:
        """How many names of files and links there are, and how many bytes the files have."""
        files = {id(stamp): stamp[4] for stamp in self.stamps.values()}
        return sum(kind is not EntryKind.DIRECTORY for kind in self.kinds.values()), sum(files.values())

    def _put(self, real: bytes, kind: EntryKind, mode: int) -> None:
        if real not in self.kinds:
            self._name_bytes += len(real)
            if self._name_bytes > self._limits.names_bytes:
                raise too_many_name_bytes(self._limits)
            if len(self.kinds) >= self._limits.entries:
                raise ImageRefused(Reason.TOO_MANY_ENTRIES, f"the image has more than {self._limits.entries} entries")
        self.kinds[real] = kind
        self._inside.setdefault(real.rpartition(b"/")[0], set()).add(real)
        self.set_mode(real, 0 if kind is EntryKind.SYMLINK else mode)
        while real and real not in self._own:
            self._own.add(real)
            real = real.rpartition(b"/")[0]

    def _real(self, path: bytes) -> bytes:
        """Where an entry of this name goes; directories on the way are made."""
        parent, _, name = path.rpartition(b"/")
        if parent != self._asked:
            here = self._walk(parent, make=True)
            assert here is not None
            self._asked, self._here = parent, here
        if parent == self._here:
            return path  # the same object, not one more
        return self._here + b"/" + name if self._here else name

    def _walk(self, path: bytes, *, make: bool) -> bytes | None:
        """The directory that a path leads to inside the image; None if it is missing and shall not be made."""
        here, left, followed = b"", path.split(b"/")[::-1], 0
        while left:
            part = left.pop()
            if part in {b"", b"."}:
                continue
            if part == b"..":
                here = here.rpartition(b"/")[0]
                continue
            below = here + b"/" + part if here else part
            kind = self.kinds.get(below)
            if kind is None:
                if b".." in left:
                    # Of a link. Some readers end here, some make the directory, some go back without it.
                    detail = f"a link leads there and back, and there is no {printable(below)}"
                    raise ImageRefused(Reason.PARENT_NOT_DIRECTORY, detail)
                if not make:
                    return None
                self._put(below, EntryKind.DIRECTORY, 0o755)
                self.implied += 1
            elif kind is EntryKind.SYMLINK:
                followed += 1
                if followed > LINKS_FOLLOWED:
                    raise ImageRefused(Reason.SYMLINK_LOOP, f"more than {LINKS_FOLLOWED} symbolic links on the way")
                target = self.symlinks[below]
                here = b"" if target.startswith(b"/") else here
                left.extend(target.split(b"/")[::-1])
                continue
            elif kind is not EntryKind.DIRECTORY:
                raise ImageRefused(Reason.PARENT_NOT_DIRECTORY, f"{printable(below)} is a file of a lower layer")
            here = below
        if here.count(b"/") >= self._limits.depth:
            raise ImageRefused(Reason.MAX_DEPTH, f"more than {self._limits.depth} directories deep")
        return here

    # --- what layers take away ------------------------------------------------------------------------------

    def _hide(self, directory: bytes, mark: bytes) -> None:
        here = self._walk(directory, make=False)
        if here is None:
            return
        if mark == OPAQUE:
            hidden = list(self._inside.get(here, ()))
        else:
            name = mark.removeprefix(WHITEOUT)
            hidden = [here + b"/" + name if here else name]
        for path in hidden:
            self._remove_lower(path)

    def _remove_lower(self, real: bytes) -> None:
        """What lower layers have there goes; what this layer has written before its whiteout stays."""
        waiting = [real]
        while waiting:
            path = waiting.pop()
            if path not in self._own:
                self._remove(path)
            else:
                waiting += self._inside.get(path, ())

    def _remove(self, real: bytes) -> None:
        if real not in self.kinds:
            return
        parent = real.rpartition(b"/")[0]
        self._inside[parent].discard(real)
        if not self._inside[parent]:
            del self._inside[parent]
        waiting = [real]
        while waiting:
            path = waiting.pop()
            waiting += self._inside.pop(path, ())
            del self.kinds[path]
            self._name_bytes -= len(path)
            for known in (self.symlinks, self.stamps, self.open_to_all):
                known.pop(path, None)
            self._own.discard(path)
        self._asked = None


# --- Everything that is to be said about an archive, without extracting it ------------------------------

FINDINGS_TOLD = 500
LARGE = 1 << 20
"""An entry with so many bytes is progress by itself."""


class Findings:
    """Findings up to a number, and a count of the others. Errors are told before warnings."""

    def __init__(self) -> None:
        self._errors: list[ArchiveFinding] = []
        self._warnings: list[ArchiveFinding] = []
        self._count = 0
        self.acceptable = True

    def add(self, findings: Iterable[ArchiveFinding]) -> None:
        """Keep them as long as there is room."""
        for finding in findings:
            self._count += 1
            is_error = finding.severity is ArchiveSeverity.ERROR
            if is_error:
                self.acceptable = False
            kept = self._errors if is_error else self._warnings
            if len(kept) < FINDINGS_TOLD:
                kept.append(finding)

    def told(self) -> tuple[ArchiveFinding, ...]:
        """In the order of the archive; what concerns the whole archive comes last."""
        kept = self._errors + self._warnings[: FINDINGS_TOLD - len(self._errors)]
        return tuple(sorted(kept, key=lambda each: (each.offset is None, each.offset or 0)))

    @property
    def left_out(self) -> int:
        """How many are not told."""
        return self._count - len(self.told())


def refusal(refused: ImageRefused) -> ArchiveFinding:
    """A structural fault as the finding that ends a report."""
    return ArchiveFinding(
        code=refused.code,
        severity=ArchiveSeverity.ERROR,
        path=refused.entry,
        offset=refused.offset,
        detail=refused.detail,
    )


def inspect_tar(
    stream: Stream,
    *,
    policy: Policy,
    limits: Limits,
    keep_setuid: bool = False,
    merged: MergedLayers | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> InspectionReport:
    """Judge every entry and report every finding; a structural fault ends it.

    What belongs to a layer is applied to the tree that it makes with the layers below, `merged`.
    `on_progress` is told now and then how far the stream was read, and how many entries were in it.
    """
    judge = Judge(policy, limits, keep_setuid=keep_setuid, layer=merged is not None)
    findings = Findings()
    try:
        for entry in TarReader(stream, limits):
            verdict = judge.judge(entry)
            if verdict.findings:
                findings.add(verdict.findings)
            if merged is not None and verdict.acceptable:
                findings.add(merged.apply(entry, verdict))
            if on_progress is not None and (not judge.entries & 1023 or entry.size > LARGE):
                on_progress(stream.position, judge.entries)
        findings.add(judge.finish())
    except ImageRefused as refused:
        findings.add([refusal(refused)])
    return InspectionReport(
        acceptable=findings.acceptable,
        policy=policy,
        form="tar",
        compression=stream.compression,
        # Of a layer the merged tree tells which are new.
        entries=judge.entries + (judge.implied if merged is None else 0),
        total_bytes=judge.total_bytes,
        findings=findings.told(),
        findings_left_out=findings.left_out,
    )
