"""The rules of what an image may contain: one entry after the other, against all that came before. Pure.

Both policies refuse what could harm the host or what readers disagree about. Where they differ, see attributes.py and
linking.py: `strict` refuses, `distro` takes what every Linux distribution contains, defused.
"""

from __future__ import annotations

import msgspec

from holdfast_images.archive import entry as names
from holdfast_images.archive import entry_rules
from holdfast_images.archive.entry import ArchiveFinding, ArchiveSeverity, Entry, EntryKind, Limits, Policy, Reason
from holdfast_images.archive.entry_rules import LATEST_NS, Remark, Seen, Stamp, by_policy, error, warning
from holdfast_images.errors import ImageRefused

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
FILE, DIRECTORY = EntryKind.FILE, EntryKind.DIRECTORY
PARENTS = 1024
"""Directories of which it is remembered how they are spelled: names come directory by directory."""
NAME_TOLD = 256
DETAIL_TOLD = 1000
"""Of a name, in bytes, and of a detail: escaped they take several times as many, and a report has hundreds of them."""
_STRICT_REMARKS = frozenset((Reason.PAX_UNKNOWN, Reason.SIZE_OVERRIDDEN))


class Verdict(msgspec.Struct, gc=False):
    """What becomes of an entry."""

    path: bytes
    """Normalised: no './' in front, no '/' at the end; empty for the root itself."""
    mode: int
    mtime_ns: int
    stamp: Stamp
    """What its header says, as it is remembered."""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    findings: tuple[ArchiveFinding, ...] = ()
    acceptable: bool = True
    left_out: bool = False
    """Acceptable, but not to be made: a device node that the policy leaves out, a whiteout of nothing."""
    whiteout: bool = False
    """In a layer: the last component takes something of lower layers away, and nothing is made."""
    link: bytes = b""
    """The normalised target of a hard link."""


class Judge:
    """Judges the entries of one archive, in order."""

    def __init__(self, policy: Policy, limits: Limits, *, keep_setuid: bool = False, layer: bool = False) -> None:
        self._policy = policy
        self._limits = limits
        self._keep_setuid = keep_setuid
        self._layer = layer
        self._seen = Seen(layer=layer)
        self._kinds = self._seen.kinds
        self._stamps = self._seen.stamps
        self._file_bytes = limits.file_bytes
        self._total_bytes = limits.total_bytes
        self._names_bytes = limits.names_bytes
        self._short = min(names.COMPONENT_BYTES, limits.name_bytes)
        """No path of so many bytes, and no component of it, is too long."""
        self._parents: dict[bytes, bytes] = {b"": b""}
        """Directory as the archive spells it -> what goes in front of the names in it; the last ones only."""
        self._winding: list[tuple[bytes, bytes, int]] = []
        self._names = 0
        """Bytes of names and link targets."""
        self.entries = 0
        self.implied = 0
        """Directories that no entry has named: inodes all the same."""
        self.total_bytes = 0
        """Of content and extended attributes."""

    def judge(self, entry: Entry) -> Verdict:
        """Accept or refuse the entry, and say why; what is refused counts as not there."""
        self.entries += 1
        if self.entries + self.implied > self._limits.entries:
            raise self._too_many_implied()
        name, kind = entry.name, entry.kind
        if kind is DIRECTORY and name[-1:] == b"/":
            name = name[:-1]
        head, _, leaf = name.rpartition(b"/")
        parent = self._parents.get(head)
        size = entry.size
        # The ordinary file or directory in a known directory; what is in any way special takes the long way.
        if (
            parent is not None
            and leaf
            and leaf[0] != 0x2E
            and name[0] != 0x2F
            and name[1:2] != b":"
            and (kind is FILE or kind is DIRECTORY)
            and not leaf.translate(None, names.PLAIN)
            and not entry.mode & 0o6002
            and size <= self._file_bytes
            and self.total_bytes + size <= self._total_bytes
            and 0 <= entry.mtime_ns <= LATEST_NS
            and not entry.xattrs
            and not entry.remarks
            and len(entry.name) <= self._short
            and (path := parent + leaf) not in self._kinds
        ):
            self._kinds[path] = kind
            self.total_bytes += size
            self._names += len(path)
            if self._names > self._names_bytes:
                raise too_many_name_bytes(self._limits)
            stamp = self._stamps[path] = (entry.mode, entry.uid, entry.gid, entry.mtime_ns, size, 0)
            if kind is DIRECTORY and path.count(b"/") + 1 < self._limits.depth:
                self._remember(name, path + b"/")
            return Verdict(path, entry.mode, entry.mtime_ns, stamp)
        return self._judge_unusual(entry)

    def finish(self) -> tuple[ArchiveFinding, ...]:
        """What can only be said when all entries are known."""
        findings: list[ArchiveFinding] = []
        if not self.entries:
            findings.append(finding_of(error(Reason.EMPTY_ARCHIVE, "there is no entry in it"), b"", None))
        if not self._layer and names.names_an_image(self._kinds):
            detail = "beside other things it has a document from which other programs load an image"
            findings.append(finding_of(error(Reason.AMBIGUOUS_IMAGE, detail), b"", None))
        for path, target, offset in self._winding:
            if self._seen.is_winding():
                detail = f"following the links of the archive takes more than {self._seen.steps} steps"
                findings.append(finding_of(error(Reason.TOO_WINDING, detail), path, offset))
                break
            if self._seen.climbs_out(path, target):
                remark = error(
                    Reason.SYMLINK_ESCAPES,
                    f"-> {names.printable(target[:256])} leads above the root of the image by way of other links",
                )
                findings.append(finding_of(remark, path, offset))
        # Of a layer the merged tree tells it.
        open_to_all = () if self._layer else self._seen.trusted_but_open()
        findings += [finding_of(remark, path, None) for path, remark in open_to_all]
        count, example = self._seen.twins()
        if count:
            detail = f"{count} names differ from another only in case or Unicode form, such as {example}"
            findings.append(finding_of(warning(Reason.TWIN_NAMES, detail), b"", None))
        return tuple(findings)

    def _judge_unusual(self, entry: Entry) -> Verdict:
        parts = names.components(entry.name)
        path = b"/".join(parts)
        name_remarks = remarks = self._name_remarks(entry, parts, path)
        if any(remark.severity is ArchiveSeverity.ERROR for remark in remarks):
            return self._verdict(entry, path, remarks)
        if self._layer and parts and parts[-1].startswith(WHITEOUT):
            return self._judge_whiteout(entry, parts, remarks)
        inside = self._seen.inside(path)
        mode, mode_remarks = entry_rules.judged_mode(entry, self._policy, keep_setuid=self._keep_setuid, inside=inside)
        mtime_ns, time_remarks = entry_rules.judged_time(entry.mtime_ns)
        xattrs, xattr_remarks = entry_rules.judged_xattrs(
            entry, self._policy, self._limits, keep_setuid=self._keep_setuid
        )
        kind_remarks = list(entry_rules.judged_kind(entry, self._policy, inside))
        link, link_remarks = self._link(entry, path)
        remarks = remarks + mode_remarks + time_remarks + xattr_remarks + kind_remarks + link_remarks
        remarks += self._size_remarks(entry, xattrs) + self._parser_remarks(entry)
        verdict = self._verdict(entry, path, remarks)
        if verdict.acceptable:
            verdict.mode, verdict.mtime_ns, verdict.xattrs, verdict.link = mode, mtime_ns, xattrs, link
            verdict.left_out = bool(kind_remarks)
            self._keep(entry, verdict.stamp, mode, path, link)
            if not name_remarks:
                self._remember_parent(entry.name, parts)
        return verdict

    def _name_remarks(self, entry: Entry, parts: list[bytes], path: bytes) -> list[Remark]:
        limits = self._limits
        problem = names.problem(entry.name, parts, depth=limits.depth, length=limits.name_bytes)
        if problem is not None:
            return [error(*problem)]
        is_directory = entry.kind is EntryKind.DIRECTORY
        if not is_directory and (not parts or entry.name.endswith((b"/", b"/."))):
            return [error(Reason.BAD_NAME, f"a {entry.kind.name.lower()} is named like a directory")]
        before = self._kinds.get(path)
        if before is not None and before is not entry.kind:
            detail = f"it was a {before.name.lower()} and is now a {entry.kind.name.lower()}"
            return [error(Reason.DUPLICATE_TYPE_CHANGE, detail)]
        if before is not None and not is_directory:
            return [error(Reason.DUPLICATE_NAME, "the name occurs twice")]
        obstacle = self._seen.obstacle(parts)
        if obstacle is not None:
            through, kind = obstacle
            if self._layer and parts[-1].startswith(WHITEOUT):
                # umoci writes such: what it takes away was in a directory that this very layer has replaced.
                detail = f"{names.printable(through)} is a {kind.name.lower()}"
                return [by_policy(self._policy, Reason.USELESS_WHITEOUT, detail, instead="left out")]
            reason = Reason.WRITE_THROUGH_SYMLINK if kind is EntryKind.SYMLINK else Reason.PARENT_NOT_DIRECTORY
            return [error(reason, f"{names.printable(through)} is a {kind.name.lower()}")]
        remarks = self._whiteout_remarks(parts)
        if is_directory and path in self._stamps:
            remarks += entry_rules.differing_directory(self._policy, stamp_of(entry), self._stamps[path])
        if names.is_foreign(entry.name):
            detail = "the name begins with a drive or a backslash"
            remarks.append(by_policy(self._policy, Reason.FOREIGN_NAME, detail, instead="taken literally"))
        if names.is_suspicious(entry.name):
            remarks.append(warning(Reason.SUSPICIOUS_NAME, "the name has control characters or a backslash"))
        return remarks

    def _whiteout_remarks(self, parts: list[bytes]) -> list[Remark]:
        if not any(part.startswith(WHITEOUT) for part in parts):
            return []
        if not self._layer:
            return [by_policy(self._policy, Reason.WHITEOUT, "a whiteout outside of a layer", instead="literally")]
        if any(part.startswith(WHITEOUT) for part in parts[:-1]):
            return [error(Reason.BAD_WHITEOUT, "a whiteout cannot have entries below it")]
        taken = parts[-1][len(WHITEOUT) :]
        if taken in {b"", b".", b".."} or (taken.startswith(WHITEOUT) and parts[-1] != OPAQUE):
            return [error(Reason.BAD_WHITEOUT, "the whiteout names nothing that could be taken away")]
        return []

    def _judge_whiteout(self, entry: Entry, parts: list[bytes], remarks: list[Remark]) -> Verdict:
        path = b"/".join(parts)
        if entry.kind is not EntryKind.FILE or entry.size:
            remarks.append(error(Reason.BAD_WHITEOUT, "a whiteout must be an empty file"))
        verdict = self._verdict(entry, path, remarks)
        verdict.left_out = any(remark.reason is Reason.USELESS_WHITEOUT for remark in remarks)
        verdict.whiteout = verdict.acceptable and not verdict.left_out
        if verdict.whiteout:
            self._kinds[path] = entry.kind
        return verdict

    def _link(self, entry: Entry, path: bytes) -> tuple[bytes, list[Remark]]:
        if entry.kind is EntryKind.SYMLINK:
            return b"", list(entry_rules.judged_symlink(entry, path, self._seen, self._policy))
        if entry.kind is EntryKind.HARDLINK:
            link, remark = entry_rules.judged_hardlink(entry, path, self._seen, self._limits, layer=self._layer)
            remarks = ([] if remark is None else [remark]) + entry_rules.judged_first_name(path, link, self._seen)
            if (first := self._stamps.get(link)) is not None:
                remarks += entry_rules.differing_header(self._policy, stamp_of(entry), first)
            return link, remarks
        return b"", []

    def _size_remarks(self, entry: Entry, xattrs: tuple[tuple[bytes, bytes], ...]) -> list[Remark]:
        remarks = []
        if entry.size > self._limits.file_bytes:
            detail = f"the file has {entry.size} bytes, {self._limits.file_bytes} are allowed"
            remarks.append(error(Reason.FILE_TOO_LARGE, detail))
        size = entry.size + sum(len(name) + len(value) for name, value in xattrs)
        before, self.total_bytes = self.total_bytes, self.total_bytes + size
        if before <= self._limits.total_bytes < self.total_bytes:
            remarks.append(self._total_exceeded())
        return remarks

    def _total_exceeded(self) -> Remark:
        return error(Reason.TOTAL_SIZE, f"the files have more than {self._limits.total_bytes} bytes together")

    def _parser_remarks(self, entry: Entry) -> list[Remark]:
        strict = self._policy is Policy.STRICT
        return [
            (error if strict and code in _STRICT_REMARKS else warning)(Reason[code], detail)
            for code, detail in entry.remarks
        ]

    def _keep(self, entry: Entry, stamp: Stamp, mode: int, path: bytes, link: bytes) -> None:
        seen = self._seen
        if path:
            self._count_implied(seen.add_parents(path))
            if path not in self._kinds:
                self._names += len(path) + len(entry.linkname)
            self._kinds[path] = entry.kind
        if self._names > self._names_bytes:
            raise too_many_name_bytes(self._limits)
        if entry.kind is EntryKind.SYMLINK:
            seen.symlinks[path] = entry.linkname
            if entry_rules.goes_back(entry.linkname):
                self._winding.append((path, entry.linkname, entry.offset))
        elif link:
            origin = seen.origins.get(link, link)
            seen.origins[path] = origin
            seen.names_of[origin] = seen.names_of.get(origin, 0) + 1
            if link in self._stamps:
                self._stamps[path] = self._stamps[link]
        else:
            seen.set_mode(path, mode)
            if entry.kind is FILE or entry.kind is DIRECTORY:
                self._stamps[path] = stamp

    def _count_implied(self, directories: list[bytes]) -> None:
        self.implied += len(directories)
        self._names += sum(map(len, directories))
        if self.entries + self.implied > self._limits.entries:
            raise self._too_many_implied()

    def _too_many_implied(self) -> ImageRefused:
        return ImageRefused(
            Reason.TOO_MANY_ENTRIES,
            f"with the directories that its names imply there are more than {self._limits.entries} entries",
        )

    def _remember_parent(self, name: bytes, parts: list[bytes]) -> None:
        """Names in the same directory need not be looked at from its root on."""
        head, slash, _ = name.rstrip(b"/").rpartition(b"/")
        if slash and len(parts) < self._limits.depth:
            self._remember(head, b"".join(part + b"/" for part in names.components(head)))

    def _remember(self, head: bytes, prefix: bytes) -> None:
        if len(self._parents) > PARENTS:
            self._parents = {b"": b""}
        self._parents[head] = prefix

    def _verdict(self, entry: Entry, path: bytes, remarks: list[Remark]) -> Verdict:
        findings = tuple(finding_of(remark, entry.name, entry.offset) for remark in remarks)
        acceptable = all(remark.severity is not ArchiveSeverity.ERROR for remark in remarks)
        return Verdict(path, entry.mode, entry.mtime_ns, stamp_of(entry), findings=findings, acceptable=acceptable)


def stamp_of(entry: Entry) -> Stamp:
    """What the header of a directory, of a file, or of a hard link to it, says."""
    return entry.mode, entry.uid, entry.gid, entry.mtime_ns, entry.size, hash(entry.xattrs) if entry.xattrs else 0


def too_many_name_bytes(limits: Limits) -> ImageRefused:
    """Names are kept in memory until the end: all together they are limited."""
    return ImageRefused(
        Reason.NAMES_TOO_LONG, f"the names and link targets have more than {limits.names_bytes} bytes together"
    )


def finding_of(remark: Remark, name: bytes, offset: int | None) -> ArchiveFinding:
    """A remark about this name, for reports."""
    return ArchiveFinding(
        code=remark.reason,
        severity=remark.severity,
        path=names.printable(name[:NAME_TOLD]),
        offset=offset,
        detail=remark.detail[:DETAIL_TOLD],
    )
