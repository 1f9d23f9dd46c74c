"""What may be used as a name, a key or an id: checked once, at the edge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from holdfast.core.retry import seconds_of
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


# --- Who holds a lease: an identity that cannot be mistaken for another process, not even one with the same pid ---


class WorkerId(msgspec.Struct, frozen=True):
    """A process: host, boot, pid namespace, pid and its start time; `nonce` tells workers of one process apart."""

    host: str
    pid: int
    start: int
    boot: str
    namespace: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}:{self.boot}:{self.namespace}:{self.nonce}"

    @property
    def label(self) -> str:
        """For people."""
        return f"pid {self.pid} on {self.host}"


def parse_worker_id(text: str) -> WorkerId | None:
    """The identity in a lease's owner, or None if it is not a worker's (an operator's, say)."""
    parts = text.rsplit(":", 5)
    if len(parts) != 6 or not all(parts[i].isdecimal() for i in (1, 2, 4)):
        return None
    return WorkerId(parts[0], int(parts[1]), int(parts[2]), parts[3], int(parts[4]), parts[5])


def label_of(owner: str) -> str:
    """A lease owner for people: the process, or the text as it is."""
    worker = parse_worker_id(owner)
    return worker.label if worker else owner


# --- Requests and responses as JSON: one way to write them and to read them, used wherever one crosses the
# database.

T = TypeVar("T")

WRITING_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a value, and decoding it again, may raise. A pydantic model's error is a ValueError."""

_NOT_AS_KEY = (
    inspect.CollectionType,
    inspect.CustomType,
    inspect.DataclassType,
    inspect.DictType,
    inspect.NamedTupleType,
    inspect.StructType,
    inspect.TupleType,
    inspect.TypedDictType,
)


class Codec(Generic[T]):
    """Writes and reads one type: what msgspec knows, pydantic models, and one inside the other."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        # Here and not at the first message: msgspec prepares a type at its first use, without a lock.
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind, dec_hook=_read_model)

    @property
    def name(self) -> str:
        """The type, for messages."""
        return getattr(self.kind, "__name__", None) or str(self.kind)

    def decode(self, text: str | bytes) -> T:
        """The value that was written so; one of WRITING_ERRORS if it is none of this type."""
        return self._decoder.decode(text)

    def convert(self, value: Any) -> T:
        """The same for JSON that is decoded into plain values already."""
        return self._decoder.decode(encode(value))

    def checked(self, value: Any) -> tuple[bytes, T]:
        """A value as JSON, and as it will be read again; one of WRITING_ERRORS if that is not this type."""
        encoded = encode(value)
        return encoded, self._decoder.decode(encoded)


def encode(value: Any) -> bytes:
    """A value as JSON."""
    return _encoder.encode(value)


def codec_of(kind: type[T], what: str) -> Codec[T]:
    """The codec of a type; DefinitionError if its values cannot be written as JSON and read again.

    NameError if the type names another one that is not defined yet.
    """
    try:
        problem = next(_problems(inspect.type_info(kind)), None)
        if problem is None:
            return Codec(kind)
    except TypeError as error:
        problem = str(error)
    raise DefinitionError(
        f"{what} {kind!r} cannot be written as JSON and read again: {problem}",
        hint="use a msgspec.Struct, a dataclass, a pydantic model (2 or newer), a TypedDict or plain types",
    )


def _problems(info: inspect.Type) -> Iterator[str]:
    """Everything below a type that JSON cannot hold."""
    seen: set[int] = set()
    todo: list[Any] = [info]
    while todo:
        part = todo.pop()
        if isinstance(part, inspect.Field):
            part = part.type
        if not isinstance(part, inspect.Type) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, inspect.CustomType) and not _is_model(part.cls):
            yield f"nothing is known of what a {part.cls.__name__} holds"
        if isinstance(part, inspect.ExtType):
            yield "an Ext is of MessagePack alone"
        if isinstance(part, inspect.DictType) and isinstance(part.key_type, _NOT_AS_KEY):
            yield "a JSON object has text or numbers for keys"
        for name in part.__struct_fields__:
            value = getattr(part, name)
            todo += value if isinstance(value, tuple) else [value]


def _is_model(kind: Any) -> bool:
    """Is it a model of pydantic 2 or newer? Asked without importing pydantic, which may not be there."""
    return callable(getattr(kind, "model_validate_json", None)) and callable(getattr(kind, "model_dump_json", None))


def _write_model(value: Any) -> Any:
    if not _is_model(type(value)):
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
    # By alias, because that is how a model reads, and without what it would only compute again. What does not fit its
    # type is found when it is read again, so that nobody has to be warned.
    return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True, warnings=False).encode())


def _read_model(kind: Any, value: Any) -> Any:
    return kind.model_validate_json(encode(value))


_encoder = msgspec.json.Encoder(enc_hook=_write_model)
