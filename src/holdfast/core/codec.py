"""Requests and responses as JSON: one way to write them and to read them, used wherever one crosses the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from holdfast.errors import DefinitionError

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
