"""The error tree is the one drawn in its docstring, and every error can say what to do next."""

from __future__ import annotations

import inspect
import re

from holdfast import errors
from holdfast.errors import HoldfastError, InvalidStateTransitionError, JobFailed, JobNotFoundError, LeaseLost

DEFINED = {
    name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, HoldfastError)
}


def drawn_parents() -> dict[str, str]:
    parents: dict[str, str] = {}
    branch: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^((?:[│ ] {3})*)(├── |└── )?([A-Z]\w+)(?: {2,}.*)?$", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + (1 if match[2] else 0)
        branch[depth:] = [match[3]]
        if depth:
            parents[match[3]] = branch[depth - 1]
    return parents


def test_the_drawing_is_the_tree() -> None:
    bases = {
        name: each.__base__.__name__ for name, each in DEFINED.items() if each is not HoldfastError and each.__base__
    }

    assert drawn_parents() == bases


def test_every_error_has_a_promise() -> None:
    assert [name for name, each in DEFINED.items() if not each.__doc__] == []


def test_facts_are_attributes() -> None:
    assert JobNotFoundError("01H").job_id == "01H"
    assert LeaseLost("x1").exec_id == "x1"
    assert JobFailed("01H", "failed", None).state == "failed"
    assert InvalidStateTransitionError("a", "b").to_state == "b"


def test_a_hint_given_is_kept_and_none_is_none() -> None:
    assert HoldfastError("x", hint="do y").hint == "do y"
    assert HoldfastError("x").hint is None
