"""What may be used as a name, a key or an id: checked once, at the edge."""

from __future__ import annotations

import re

from holdfast.errors import DefinitionError, InvalidKeyError

NAME_LIMIT = 100
KEY_LIMIT = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
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
    """`key`, if it may identify the one unfinished job of its flow."""
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(key) > KEY_LIMIT or not key.isprintable():
        raise InvalidKeyError(
            f"key {str(key)[:80]!r} is not valid", hint=f"1 to {KEY_LIMIT} printable characters, or no key at all"
        )
    return key


def checked_job_id(job_id: str) -> str:
    """`job_id`, if it is a ULID in canonical form."""
    if not isinstance(job_id, str) or not _ULID.fullmatch(job_id):
        raise InvalidKeyError(f"job id {str(job_id)[:80]!r} is not a ULID", hint="26 characters, as printed by submit")
    return job_id


def ulid_from(milliseconds: int, randomness: int) -> str:
    """The ULID of a time (48 bits) and 80 random bits; ULIDs sort by time."""
    value = (milliseconds & ((1 << 48) - 1)) << 80 | (randomness & ((1 << 80) - 1))
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])
