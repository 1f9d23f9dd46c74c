"""The mutation runner itself: it makes the mistakes that it says, and a test that notices one is believed."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.mutation.__main__ import ROOT, Mutant, modules_of, mutants_of, survives
from tests.mutation.nearest import Nearest, Seen, candidates, within
from tests.mutation.sites import drawn, sites
from tests.mutation.trial import Copy

PAIRS = {
    "x = a < b": {"x = (a <= b)", "x = (a >= b)"},
    "x = a is None": {"x = (a is not None)"},
    "x = a and b": {"x = (a or b)"},
    "x = not a": {"x = bool(a)"},
    "x = 7": {"x = 8", "x = 6"},
    "x = True": {"x = False"},
    "f(a, b)": {"f(b, a)", "pass"},
    "self.x = y": {"pass"},
    "x += y": {"pass"},
    "raise E": {"pass"},
    "def f():\n    return x": {"def f():\n    return None"},
}


@pytest.mark.parametrize("source", PAIRS)
def test_a_mistake_is_one_of_the_list(source: str) -> None:
    assert {site.apply(source.encode()).decode() for site in sites(source.encode())} == PAIRS[source]


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "x: Literal[1]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "if TYPE_CHECKING:\n    f(1, 2)",
        "class P(Protocol):\n    x = 1",
        "x = f'{1}'",
        "return_nothing = None",
    ],
)
def test_what_never_runs_is_left_alone(source: str) -> None:
    assert sites(source.encode()) == []


def test_every_mutant_of_the_engine_can_be_compiled(rng: random.Random) -> None:
    for module in modules_of(ROOT, "core"):
        source = (ROOT / "src" / module).read_bytes()
        for site in drawn(source, rng, 5):
            assert compile(site.apply(source), str(module), "exec") is not None


def test_the_same_seed_draws_the_same_mutants() -> None:
    modules = modules_of(ROOT, "core")

    assert mutants_of(ROOT, modules, 20, random.Random(1)) == mutants_of(ROOT, modules, 20, random.Random(1))
    assert mutants_of(ROOT, modules, 20, random.Random(1)) != mutants_of(ROOT, modules, 20, random.Random(2))


def test_the_files_of_tests_follow_from_what_they_import() -> None:
    [rules] = modules_of(ROOT, "holdfast/core/states")
    files = candidates(ROOT, [rules])

    assert "tests/unit/core/test_valid_transitions.py" in files
    assert not [name for name in files if name.startswith("tests/unit/images/archive")]


def test_one_case_of_each_test_comes_first_and_the_quick_ones_before_the_slow() -> None:
    tests = [
        Seen("t.py::slow", 3.0, frozenset({"m.py:1"})),
        Seen("t.py::many[a]", 1.0, frozenset({"m.py:1"})),
        Seen("t.py::many[b]", 2.0, frozenset({"m.py:1"})),
        Seen("t.py::elsewhere", 0.1, frozenset({"m.py:9"})),
    ]
    found = Nearest(tests, ROOT)(Path("m.py"), 1, random.Random(1))

    assert [test.name for test in found] == ["t.py::many[a]", "t.py::slow", "t.py::many[b]"]
    assert [test.name for test in within(found, 4.5)] == ["t.py::many[a]", "t.py::slow"]


def test_a_mutant_is_noticed_or_survives(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "toy.py").write_text("def larger(a, b):\n    return a if a > b else b\n")
    (tmp_path / "test_toy.py").write_text(
        "import toy\n\n\ndef test_larger() -> None:\n    assert (toy.larger(1, 2), toy.larger(2, 1)) == (2, 2)\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    nearest = Nearest([Seen("test_toy.py::test_larger", 0.1, frozenset({"toy.py:1"}))], tmp_path)
    copy = Copy(tmp_path, 1)
    try:
        mutants = [Mutant(Path("toy.py"), site) for site in sites((tmp_path / "src" / "toy.py").read_bytes())]
        outcomes = {each.site.text.decode(): survives(each, nearest, copy, random.Random(1)) for each in mutants}
    finally:
        copy.close()

    # Which of two equal ones is returned cannot be seen: this one is equivalent.
    assert outcomes == {"(a >= b)": "survived 1 of 1 tests", "(a <= b)": "", "return None": ""}
