"""What comes as text in a query, a form, a path or a header, as typed values; nothing unknown, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from holdfast.core.values import checked_job_id, checked_name
from holdfast.web.problems import Refused

T = TypeVar("T")

MOST_FIELDS = 100
UNNAMED_QUEUE = "-"
"""In a path, the queue without a name; names begin with a letter or a digit."""


def _queue(text: str) -> str:
    return "" if text == UNNAMED_QUEUE else checked_name(text, "queue")


PATH_CHECKS: Mapping[str, Callable[[str], str]] = {
    "job_id": checked_job_id,
    "flow": lambda text: checked_name(text, "flow"),
    "queue": _queue,
    "token": lambda text: checked_name(text, "token"),
}
"""What may stand in a path, by the name of its place; an extension checks its own in the handler."""


def checked_path(found: Mapping[str, str]) -> dict[str, str]:
    """The values of a path, as the engine itself would take them."""
    return {name: PATH_CHECKS[name](text) if name in PATH_CHECKS else text for name, text in found.items()}


def decoded(text: bytes, kind: Any, what: str) -> Any:
    """A query or a form as a value of this type; a problem that names the field if it is none."""
    pairs = _pairs(text, what)
    known = {} if kind is None else _fields(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            hint = f"known here: {', '.join(known) or 'none'}"
            raise Refused(400, "unknown-parameter", f"the {what} has a parameter that is not known", hint=hint)
        if known[name].is_list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Refused(400, "invalid-parameter", f"{name} is given twice in the {what}")
        elif not known[name].is_text and value.strip().lower() in ("null", ""):
            # Or a lenient reader would take the word for no value.
            raise Refused(400, "invalid-parameter", f"{name} in the {what} has no value")
        else:
            values[name] = value
    if kind is None:
        return None
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, "invalid-parameter", f"in the {what}: {error}") from None


def _pairs(text: bytes, what: str) -> Iterable[tuple[str, str]]:
    if not text:
        return []
    try:
        return parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise Refused(400, "invalid-parameter", f"the {what} cannot be read") from None


class Field(msgspec.Struct, frozen=True):
    """How a parameter is read."""

    is_list: bool
    is_text: bool


@cache
def _fields(kind: Any) -> Mapping[str, Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: _field(field.type) for field in info.fields}


def _field(info: inspect.Type) -> Field:
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    return Field(
        is_list=any(isinstance(each, inspect.CollectionType | inspect.VarTupleType) for each in members),
        is_text=any(isinstance(each, inspect.StrType) for each in members),
    )


# --- bodies ----------------------------------------------------------------------------------------------

EXACT = 1 << 53
"""Whole numbers up to here are the same as floats."""


def json_as(body: bytes, decode: Callable[[bytes], T], refusal: type[Exception] | tuple[type[Exception], ...]) -> T:
    """The body as `decode` takes it. 50.0 is a whole number to JSON, and to a schema: it is taken for one, too."""
    try:
        return decode(body)
    except refusal:
        return decode(msgspec.json.encode(_with_whole_numbers(msgspec.json.decode(body))))


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= EXACT else value
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    return value


# --- content negotiation ---------------------------------------------------------------------------------


def accepts(header: str | None, media_type: str) -> bool:
    """Does an Accept header take this media type? One without a header takes everything."""
    if header is None or not header.strip():
        return True
    wanted = media_type.partition(";")[0]
    ranges = {_essence(part): _quality(part) for part in header.split(",")}
    for candidate in (wanted, f"{wanted.partition('/')[0]}/*", "*/*"):
        if candidate in ranges:
            return ranges[candidate] > 0
    return False


def asks_for(header: str | None, media_type: str) -> bool:
    """Does an Accept header name this media type itself, as a browser does?"""
    return any(_essence(part) == media_type and _quality(part) > 0 for part in (header or "").split(","))


def is_media_type(header: str | None, media_type: str) -> bool:
    """Is that the type of a body, in UTF-8?"""
    essence, _, parameters = (header or "").partition(";")
    charset = next((v for k, _, v in (p.partition("=") for p in parameters.split(";")) if k.strip() == "charset"), "")
    return essence.strip().lower() == media_type and charset.strip('" ').lower() in ("", "utf-8")


def _essence(part: str) -> str:
    return part.partition(";")[0].strip().lower()


def _quality(part: str) -> float:
    for parameter in part.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
