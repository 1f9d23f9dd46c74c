"""What kind of archive it is: a plain tar of a root file system, an OCI layout, or what docker save makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from holdfast_images.archive.compression import HEADERS_PER_ENTRY, Stream, open_stream
from holdfast_images.archive.decoders import FileHash
from holdfast_images.archive.entry import (
    ArchiveFinding,
    ArchiveSeverity,
    InspectionReport,
    Limits,
    Policy,
    Reason,
    components,
    is_member_name,
)
from holdfast_images.archive.inspection import Findings, MergedLayers, inspect_tar, refusal
from holdfast_images.archive.manifests import (
    COMPRESSIONS_OF_LAYERS,
    Layer,
    Selected,
    host_architecture,
    select_docker,
    select_oci,
)
from holdfast_images.archive.members import Members, index_members, spool_whole
from holdfast_images.archive.reader import TarReader
from holdfast_images.errors import ImageRefused

Progress = Callable[[int, int, int], None]
"""Called with the bytes done, the bytes in all (0: unknown) and the entries so far."""


class ImageArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive whose form is known and, if it has layers, whose documents and stored layers have been verified."""

    form: str
    compression: str
    fd: int
    """Where the layers lie: the archive, or its decompressed copy."""
    layers: tuple[Layer, ...] = ()
    """None in a plain tar."""
    findings: tuple[ArchiveFinding, ...] = ()

    def open_layer(self, layer: Layer, limits: Limits, hashed: FileHash | None = None) -> Stream:
        """The layer's content, compressed as its media type says."""
        stream = open_stream(self.fd, limits=limits, start=layer.member.start, length=layer.member.size, hashed=hashed)
        # Of a docker-save archive nothing says it; what no media type has is taken from none.
        if stream.compression not in ({layer.compression} if layer.compression else COMPRESSIONS_OF_LAYERS):
            stream.close()
            expected = layer.compression or "gzip or zstd"
            raise ImageRefused(
                Reason.UNSUPPORTED_MEDIA_TYPE,
                f"{layer.name} should be compressed by {expected}, and is by {stream.compression}",
            )
        return stream

    def stored_hash(self, layer: Layer) -> FileHash:
        """To be shown what is read of a layer, and then compared with its digest."""
        algorithm = layer.stored.partition(":")[0]
        return FileHash(self.fd, layer.member.start, layer.member.size, algorithm)


def open_image(archive: int, *, spool: int, limits: Limits, checksum: str = "") -> ImageArchive:
    """Recognise the archive by its entries; `spool` is an empty file for a decompressed copy, if one is needed.

    With the SHA-256 of the archive, what names its layers is what has that digest: they are proven by what they are
    named by. A plain tar is compared when it is read.
    """
    stream = open_stream(archive, limits=limits)
    compression = stream.compression
    try:
        may_have_layers = _begins_like_layers(stream, limits)
    finally:
        stream.close()
    plain = ImageArchive(form="tar", compression=compression, fd=archive)
    if not may_have_layers:
        return plain
    source, hashed = archive, FileHash.of_file(archive) if checksum else None
    if compression != "none":
        spool_whole(archive, spool, limits=limits, hashed=hashed)
        source = spool
    members = index_members(source, limits=limits, hashed=hashed if source == archive else None)
    form = _form(members)
    if members is None or form == "tar":
        return plain
    if hashed is not None:
        hashed.refuse_other(f"sha256:{checksum}", "the archive")
    selected = _select(members, form, limits)
    image = ImageArchive(
        form=form, compression=compression, fd=source, layers=selected.layers, findings=selected.findings
    )
    for layer in image.layers:
        image.open_layer(layer, limits).close()
    return image


class Reading:
    """How much has been decompressed of an image, over all layers and however often: told, and limited."""

    def __init__(self, limits: Limits, progress: Progress) -> None:
        # What one plain archive may expand to, read twice: to verify its layers, and to look at what is in them.
        self._most = 2 * (limits.total_bytes + (limits.entries + 2) * HEADERS_PER_ENTRY)
        self._progress = progress
        self._before = 0
        self._now = 0

    def layer_begins(self) -> None:
        """Positions are those in another stream from now on."""
        self._before, self._now = self._before + self._now, 0

    def at(self, position: int, entries: int = 0) -> None:
        """The stream was read up to there. Raises ImageRefused if it is too much together."""
        self._now = position
        if self._before + position > self._most:
            raise ImageRefused(
                Reason.DECOMPRESSION_BOMB, f"reading its layers takes more than {self._most} bytes, once decompressed"
            )
        self._progress(self._before + position, 0, entries)


def verify_contents(image: ImageArchive, limits: Limits, reading: Reading, *, all_layers: bool) -> None:
    """The decompressed layers are those the configuration names: all, or those of which nothing else is proven."""
    members = Members(image.fd, {})
    for layer in image.layers:
        if all_layers or not layer.proven:
            reading.layer_begins()
            algorithm = layer.content.partition(":")[0]
            stored = image.stored_hash(layer)
            found = members.digest_of_content(layer.member, limits, algorithm, reading.at, stored)
            stored.refuse_other(layer.stored, f"the layer {layer.name}")
            if found != layer.content:
                raise ImageRefused(
                    Reason.DIGEST_MISMATCH, f"the layer {layer.name} decompresses to {found}, not {layer.content}"
                )


def inspect(
    archive: int, *, spool: int, policy: Policy, limits: Limits, keep_setuid: bool, progress: Progress
) -> InspectionReport:
    """Everything that is to be said about an archive; what cannot be read on is one more finding."""
    judge = partial(inspect_tar, policy=policy, limits=limits, keep_setuid=keep_setuid)
    reading = Reading(limits, progress)
    try:
        image = open_image(archive, spool=spool, limits=limits)
        verify_contents(image, limits, reading, all_layers=True)
    except ImageRefused as refused:
        return _refused(refused, policy)
    if image.form == "tar":
        stream = open_stream(archive, limits=limits)
        try:
            return judge(stream, on_progress=lambda done, entries: progress(done, stream.length or 0, entries))
        finally:
            stream.close()
    reports: list[tuple[str, InspectionReport]] = []
    merged = MergedLayers(policy, limits)
    for layer in image.layers:
        reading.layer_begins()
        merged.begin_layer()
        try:
            stream = image.open_layer(layer, limits)
        except ImageRefused as refused:
            reports.append((layer.name, _refused(refused, policy)))
            continue
        try:
            reports.append((layer.name, judge(stream, merged=merged, on_progress=reading.at)))
        finally:
            stream.close()
    return _joined(image, reports, merged, policy, limits)


def _begins_like_layers(stream: Stream, limits: Limits) -> bool:
    for entry in TarReader(stream, limits):
        parts = components(entry.name)
        if parts:
            return is_member_name(parts[0])
    return False


def _form(members: Members | None) -> str:
    if members is None:
        return "tar"
    if b"oci-layout" in members and b"index.json" in members:
        return "oci"
    return "docker" if b"manifest.json" in members else "tar"


def _select(members: Members, form: str, limits: Limits) -> Selected:
    """The one image in it, whichever of its documents is read."""
    architecture = host_architecture()
    if form == "docker":
        return select_docker(members, limits, architecture)
    selected = select_oci(members, limits, architecture)
    # docker save writes both documents since version 25.
    if b"manifest.json" in members:
        other = select_docker(members, limits, architecture)
        if _places(selected) != _places(other):
            raise ImageRefused(
                Reason.AMBIGUOUS_IMAGE,
                "index.json and manifest.json name different images",
                hint="export the image once more, with one of them",
            )
    return selected


def _places(selected: Selected) -> list[tuple[int, str]]:
    return [(layer.member.start, layer.content) for layer in selected.layers]


def _refused(refused: ImageRefused, policy: Policy) -> InspectionReport:
    return InspectionReport(
        acceptable=False,
        policy=policy,
        form="unknown",
        compression="none",
        entries=0,
        total_bytes=0,
        findings=(refusal(refused),),
    )


def _joined(
    image: ImageArchive,
    reports: list[tuple[str, InspectionReport]],
    merged: MergedLayers,
    policy: Policy,
    limits: Limits,
) -> InspectionReport:
    """One report of all layers; paths say which layer they are in, offsets are those in the layer."""
    findings = Findings()
    findings.add(image.findings)
    findings.add(merged.finish())
    for name, report in reports:
        findings.add(msgspec.structs.replace(each, path=f"{name}:{each.path}") for each in report.findings)
    entries = sum(report.entries for _, report in reports) + merged.implied
    total = sum(report.total_bytes for _, report in reports)
    for code, amount, limit in (
        (Reason.TOO_MANY_ENTRIES, entries, limits.entries),
        (Reason.TOTAL_SIZE, total, limits.total_bytes),
    ):
        if amount > limit:
            detail = f"the layers together have {amount}, an image may have {limit}"
            findings.add(
                [ArchiveFinding(code=code, severity=ArchiveSeverity.ERROR, path="", offset=None, detail=detail)]
            )
    return InspectionReport(
        acceptable=findings.acceptable and all(report.acceptable for _, report in reports),
        policy=policy,
        form=image.form,
        compression=image.compression,
        entries=entries,
        total_bytes=total,
        findings=findings.told(),
        findings_left_out=findings.left_out + sum(report.findings_left_out for _, report in reports),
    )
