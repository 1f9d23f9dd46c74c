"""One way to write requests and responses and to read them again, pydantic models included."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from holdfast.core.values import WRITING_ERRORS, codec_of
from holdfast.errors import DefinitionError

T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Item(msgspec.Struct):
    name: str
    price: Decimal = Decimal("1.50")


class Tree(msgspec.Struct):
    children: list[Tree] = []
    by_name: dict[str, Tree] = {}


@dataclass
class Plain:
    at: dt.datetime


class Named(TypedDict):
    colour: Colour


class Pair(NamedTuple):
    left: int
    right: str


class Model(pydantic.BaseModel):
    number: int
    text: str = pydantic.Field(default="a", alias="textAlias")
    at: dt.datetime | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.number


class Strict(pydantic.BaseModel, strict=True, extra="forbid"):
    at: dt.datetime
    colour: Colour


class Boxed(pydantic.BaseModel, Generic[T]):
    content: T


class WithModels(msgspec.Struct):
    one: Model
    many: list[Model] = []
    maybe: Model | None = None


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)

VALUES: list[tuple[Any, Any]] = [
    (Item, Item("x")),
    (Tree, Tree([Tree()], {"a": Tree()})),
    (Plain, Plain(NOON)),
    (Named, {"colour": Colour.RED}),
    (Pair, Pair(1, "b")),
    (dict[str, int], {"a": 1}),
    (dict[int, str], {1: "a"}),
    (dict[Colour, int], {Colour.RED: 1}),
    (set[int], {1, 2}),
    (bytes, b"\x00\xff"),
    (Literal["a", "b"], "a"),
    (type(None), None),
    (Any, {"free": [1, None, "x"]}),
    (Model, Model(number=1, textAlias="b", at=NOON)),
    (Strict, Strict(at=NOON, colour=Colour.RED)),
    (Boxed[Model], Boxed[Model](content=Model(number=1))),
    (pydantic.RootModel[list[int]], pydantic.RootModel[list[int]]([1, 2])),
    (list[Model], [Model(number=1), Model(number=2)]),
    (Model | None, None),
    (Model | None, Model(number=1)),
    (WithModels, WithModels(Model(number=1), [Model(number=2)], Model(number=3))),
]


@pytest.mark.parametrize("kind, value", VALUES)
def test_what_is_written_is_read_again(kind: Any, value: Any) -> None:
    codec = codec_of(kind, "request")
    encoded, again = codec.checked(value)

    assert again == value
    assert type(again) is type(value)
    assert codec.decode(encoded) == value
    assert codec.convert(msgspec.json.decode(encoded)) == value


@pytest.mark.parametrize(
    "kind",
    [
        "x",
        "int",
        5,
        object,
        complex,
        type,
        msgspec.msgpack.Ext,
        dict[Model, int],
        dict[Pair, int],
        Model | int,
        list[complex],
        tuple[int, complex],
        dict[str, list[tuple[int, object]]],
    ],
)
def test_a_type_that_json_cannot_hold_is_refused(kind: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        codec_of(kind, "request")

    assert str(refused.value).startswith("request ")
    assert refused.value.hint is not None


def test_a_model_of_pydantic_1_is_refused() -> None:
    from pydantic.v1 import BaseModel

    class Old(BaseModel):
        number: int

    with pytest.raises(DefinitionError, match="Old"):
        codec_of(Old, "request")


@pytest.mark.parametrize("wrong", [{"number": "many"}, {}, None, "x", Item("x")])
def test_what_is_not_the_model_is_refused_with_the_models_own_reason(wrong: Any) -> None:
    with pytest.raises(WRITING_ERRORS):
        codec_of(Model, "request").checked(wrong)


def test_a_model_that_was_spoiled_is_not_written() -> None:
    model = Model(number=1)
    model.number = "many"  # type: ignore[assignment]

    with pytest.raises(WRITING_ERRORS, match="valid integer"):
        codec_of(Model, "response").checked(model)


def test_a_dictionary_may_stand_for_a_model() -> None:
    assert codec_of(Model, "request").checked({"number": 1})[1] == Model(number=1)


def test_nobody_imports_pydantic_but_who_uses_it() -> None:
    program = "import sys, holdfast; holdfast.Flow('f', request=dict, response=dict); print('pydantic' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert answer.stdout == "False\n"
