"""What the journal says about rows beside it, so that an edited request, step or setting is found by the check."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.core.error_record import ErrorRecord
from holdfast.core.states import Disposition

DIGEST_LENGTH = 32
"""Hex digits: 128 bits, which nobody meets by chance or finds a second text for."""

NO_STEPS = "0"
"""The evidence of a job without finished steps."""

KEY_FOR_EVER = -1

_encode = msgspec.json.Encoder().encode


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an entry's metadata may say; an older version, and another kind of entry, leaves out the most of it."""

    request: str | None = None
    """A digest of the request."""
    definition: str | None = None
    """The fingerprint that the job is pinned to from here on."""
    flow: str | None = None
    key: str | None = None
    queue: str = ""
    priority: int = 0
    run_after: str | None = None
    parent: str | None = None
    child: str | None = None
    """Its name as a child of `parent`; in an entry of the parent, that of the child it has adopted."""
    round: int = 0
    key_until: int = 0
    """Until when its key stands for it whatever becomes of it; KEY_FOR_EVER, or 0 if only until it has ended."""
    adopted: str | None = None
    """The job that was there already and became a child of this one."""
    failure_limit: int = 1
    crash_limit: int = 5
    stall_ms: int = 600_000
    stall_limits: str | None = None
    not_before: int = 0
    code: str | None = None
    """Why the execution ended, or is going to."""
    failure: ErrorRecord | None = None
    """The error it ended with, or is going to."""
    planned: Disposition | None = None
    """What the end that is planned means for the job."""
    steps: str | None = None
    """The finished steps at this point: their number, and a digest of their seals."""
    wait_for: str | None = None
    """The job that this one waits for from here on."""
    forgiven: bool = False
    """The failures and crashes up to here are forgiven."""
    rescheduled: dict[str, tuple[str | int, str | int]] | None = None
    """What an operator has changed of the start, the queue and the priority: from what, to what."""
    repaired: str | None = None
    """What a repair has set right: the columns, with what was there."""


TERMS = (
    "flow",
    "key",
    "queue",
    "priority",
    "run_after",
    "parent",
    "failure_limit",
    "crash_limit",
    "stall_ms",
    "stall_limits",
)
"""What a job is submitted with; an operator may reschedule it, and nothing else changes it later."""

NOTHING = Evidence()
_decoder = msgspec.json.Decoder(Evidence)


def evidence_in(metadata: str) -> Evidence | None:
    """What the metadata of an entry says; None if it is not of the engine's making."""
    if metadata == "{}":
        return NOTHING
    try:
        return _decoder.decode(metadata)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


def metadata_of(evidence: Evidence) -> str:
    """The metadata of an entry that says this."""
    return _encode(evidence).decode()


def digest(text: str) -> str:
    """Of a request or a response."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def seal_of(
    job_id: str,
    position: int,
    step: str,
    exec_id: str,
    tries: int,
    started_at: int,
    finished_at: int,
    response_digest: str,
) -> str:
    """The seal of a finished step: a digest of its row."""
    content = _encode((job_id, position, step, exec_id, tries, started_at, finished_at, response_digest))
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]


def steps_evidence(seals: Sequence[str]) -> str:
    """The evidence of finished steps with these seals, in order."""
    return f"{len(seals)}:{digest(','.join(seals))}" if seals else NO_STEPS


def joined_evidence(seals: str | None) -> str:
    """The same for seals as a statement gathers them: joined by commas, None if there are none."""
    return NO_STEPS if seals is None else f"{seals.count(',') + 1}:{digest(seals)}"


def count_in(evidence: str) -> int:
    """How many finished steps that is."""
    return int(evidence.partition(":")[0])
