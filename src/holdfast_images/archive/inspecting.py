"""Everything that is to be said about an archive, without extracting it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast_images.archive.compression import Stream
from holdfast_images.archive.entry import Finding, Limits, Policy, Report, Severity
from holdfast_images.archive.merged import MergedLayers
from holdfast_images.archive.reading import TarReader
from holdfast_images.archive.rules import Judge
from holdfast_images.errors import ImageRefused

FINDINGS_TOLD = 500
LARGE = 1 << 20
"""An entry with so many bytes is progress by itself."""


class Findings:
    """Findings up to a number, and a count of the others. Errors are told before warnings."""

    def __init__(self) -> None:
        self._errors: list[Finding] = []
        self._warnings: list[Finding] = []
        self._count = 0
        self.acceptable = True

    def add(self, findings: Iterable[Finding]) -> None:
        """Keep them as long as there is room."""
        for finding in findings:
            self._count += 1
            is_error = finding.severity is Severity.ERROR
            if is_error:
                self.acceptable = False
            kept = self._errors if is_error else self._warnings
            if len(kept) < FINDINGS_TOLD:
                kept.append(finding)

    def told(self) -> tuple[Finding, ...]:
        """In the order of the archive; what concerns the whole archive comes last."""
        kept = self._errors + self._warnings[: FINDINGS_TOLD - len(self._errors)]
        return tuple(sorted(kept, key=lambda each: (each.offset is None, each.offset or 0)))

    @property
    def left_out(self) -> int:
        """How many are not told."""
        return self._count - len(self.told())


def refusal(refused: ImageRefused) -> Finding:
    """A structural fault as the finding that ends a report."""
    return Finding(
        code=refused.code, severity=Severity.ERROR, path=refused.entry, offset=refused.offset, detail=refused.detail
    )


def inspect_tar(
    stream: Stream,
    *,
    policy: Policy,
    limits: Limits,
    keep_setuid: bool = False,
    merged: MergedLayers | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
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
    return Report(
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
