"""What may be used as a name, a key or an id: checked once, at the edge."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal, TypeAlias

from holdfast.core.duration import seconds_of
from holdfast.errors import DefinitionError, InvalidKeyError

Unique: TypeAlias = Literal["unfinished", "forever"] | timedelta | float
"""How long a key stands for the job that was submitted with it: see Flow."""

NAME_LIMIT = 100
KEY_LIMIT = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
_ULID_BEGINNING = re.compile(r"[0-9A-HJKMNP-TV-Z]{1,25}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


def checked_name(name: str, what: str) -> str:
    """`name`, if it may name a flow, a step or a queue."""
    if not isinstance(name, str) or len(name) > NAME_LIMIT or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{what} name {name!r} is not valid",
            hint=f"1 to {NAME_LIMIT} letters, digits, '.', '_' or '-', starting with a letter or digit",
        )
    return name


def checked_key(key: str | None) -> str | None:
    """`key`, if it may identify a job of its flow."""
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(key) > KEY_LIMIT or not key.isprintable():
        raise InvalidKeyError(
            f"key {str(key)[:80]!r} is not valid", hint=f"1 to {KEY_LIMIT} printable characters, or no key at all"
        )
    return key


def key_lasts_ms(unique: Unique) -> int | None:
    """For how long after a submission its key stands for the job even if that has ended; None is for ever."""
    if isinstance(unique, str):
        if unique not in ("unfinished", "forever"):
            raise DefinitionError(f"unique={unique!r} is not known", hint="'unfinished', 'forever', or a period")
        return None if unique == "forever" else 0
    period = seconds_of(unique, "unique", error=DefinitionError)
    if round(period * 1000) < 1:
        raise DefinitionError(f"unique={unique!r} is no period", hint="for no longer than the job: 'unfinished'")
    return round(period * 1000)


def ulid_bounds(beginning: str) -> tuple[str, str] | None:
    """The lowest and the highest ULID that begin so, in either case; None if that is no beginning of one."""
    text = beginning.upper()
    return (text.ljust(26, "0"), text.ljust(26, "Z")) if _ULID_BEGINNING.fullmatch(text) else None


def checked_job_id(job_id: str) -> str:
    """`job_id`, if it is a ULID in canonical form."""
    if not isinstance(job_id, str) or not _ULID.fullmatch(job_id):
        raise InvalidKeyError(f"job id {str(job_id)[:80]!r} is not a ULID", hint="26 characters, as printed by submit")
    return job_id


def time_of_ulid(ulid: str) -> int:
    """The milliseconds that a ULID begins with; 0 for what is none."""
    if not _ULID.fullmatch(ulid):
        return 0
    value = 0
    for character in ulid[:10]:
        value = value << 5 | _CROCKFORD.index(character)
    return value


def ulid_from(milliseconds: int, randomness: int) -> str:
    """The ULID of a time (48 bits) and 80 random bits; ULIDs sort by time."""
    value = (milliseconds & ((1 << 48) - 1)) << 80 | (randomness & ((1 << 80) - 1))
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])
