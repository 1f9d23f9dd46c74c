"""From the reason that a job keeps back to the error it was."""

from __future__ import annotations

import inspect
import re

from holdfast import JobState
from holdfast.errors import JobFailed
from holdfast_images import errors
from holdfast_images.app import Images
from holdfast_images.errors import ImageError, ImageRefused

_ERRORS = {name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, ImageError)}
_TRIED = re.compile(r"step \S+ failed (?P<tries>\d+) time\(s\): ")
_HINT = re.compile(r" \(hint: (?P<hint>.*)\)\Z", re.DOTALL)
# An entry may itself look like the rest of the message: the catalog, which has it apart, is asked first.
_REFUSAL = re.compile(
    r"(?P<code>[A-Z0-9_]+)(?: at (?P<entry>.*?))?(?: \(byte (?P<offset>\d+)\))?: (?P<detail>.*)", re.DOTALL
)


def error_of(images: Images, job_id: str) -> Exception:
    """The error that ended a job, or the stage of it that failed, as it was raised."""
    client = images.engine
    children = client.store.children(job_id)
    failed = next((child.job_id for child in children if child.state is not JobState.SUCCEEDED), job_id)
    result = client.wait(failed)
    reason = result.reason or client.wait(job_id).reason or "no reason recorded"
    tried = _TRIED.match(reason)
    name, separator, message = reason[tried.end() if tried else 0 :].partition(": ")
    if not separator or name not in _ERRORS:
        return JobFailed(failed, result.state, reason)
    if tried:
        later = f"it may work later; what was tried: holdfast job show {failed}"
        return _ERRORS[name](f"{message} (tried {tried['tries']} times)", hint=later)
    found = _HINT.search(message)
    if found is not None:
        message = message[: found.start()]
    hint = found["hint"] if found is not None else None
    if name != ImageRefused.__name__:
        return _ERRORS[name](message, hint=hint)
    return _refusal(images, message, hint) or JobFailed(failed, result.state, reason)


def _refusal(images: Images, message: str, hint: str | None) -> ImageRefused | None:
    for known in images.catalog.list_refusals():
        refused = ImageRefused(
            known.code, known.detail, entry=known.entry, offset=known.byte_offset, hint=known.hint or hint
        )
        if str(refused) == message:
            return refused
    found = _REFUSAL.fullmatch(message)
    if found is None:
        return None
    offset = found["offset"]
    return ImageRefused(
        found["code"], found["detail"], entry=found["entry"] or "", offset=int(offset) if offset else None, hint=hint
    )
