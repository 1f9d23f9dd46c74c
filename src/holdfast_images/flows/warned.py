"""What was warned of when an image was judged and unpacked: how much of it is kept, with the job and in the catalog."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast_images.archive.entry import Finding
from holdfast_images.catalog.rows import Verification
from holdfast_images.flows.workshop import WARNINGS_KEPT


def most_telling(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """As many as are kept, each once: the first of every code, so that none hides another, then the others."""
    told = list(dict.fromkeys(findings))
    firsts = list({finding.code: finding for finding in reversed(told)}.values())[::-1]
    return tuple(dict.fromkeys([*firsts, *told]))[:WARNINGS_KEPT]


def warnings_of_unpacking(known: Verification | None, checksum: str) -> tuple[Finding, ...]:
    """Of what is recorded for this content, that which is not found by judging its archive again."""
    from holdfast_images.archive.reasons import OF_UNPACKING  # noqa: PLC0415 - a finished image is not judged

    if known is None or known.checksum != checksum:
        return ()
    try:
        recorded = msgspec.json.decode(known.warnings, type=tuple[Finding, ...])
    except msgspec.MsgspecError:
        return ()  # verify-system tells of such a row
    return tuple(finding for finding in recorded if finding.code in OF_UNPACKING)
