"""The guard looks at a little of the database each time, and in the end at all of it."""

from __future__ import annotations

import pytest

from holdfast import guard as survey
from holdfast.guard import Survey, look_at_open
from tests.contract.test_edits import BEHIND, scene, statements, without_checks
from tests.contract.test_repair import edit
from tests.support.backends import Backend, on_sqlite
from tests.support.bench import Bench


class Stopwatch:
    """A clock that runs as fast as it is read."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """More jobs than one look is at; one look sees two of them, and the newest three."""
    monkeypatch.setattr(survey, "TURN_PAGE", 2)
    monkeypatch.setattr(survey, "SOME_JOBS", 3)
    return [bench.submit() for _ in range(12)]


def spoil(backend: Backend, job_id: str) -> None:
    edit(backend, f"UPDATE jobs SET failures = 7 WHERE job_id = '{job_id}'")


@pytest.mark.parametrize("which", range(9))
def test_every_job_has_its_turn(bench: Bench, backend: Backend, many: list[str], which: int) -> None:
    spoil(backend, many[which])
    looks = Survey(bench.store, clock=Stopwatch(1.0), seconds=0.5)

    found = [[finding.subject for finding in looks.look()] for _ in range(6)]
    assert [bool(subjects) for subjects in found] == [turn == which // 2 for turn in range(6)]


def test_the_newest_are_looked_at_each_time(bench: Bench, backend: Backend, many: list[str]) -> None:
    spoil(backend, many[-1])
    looks = Survey(bench.store, clock=Stopwatch(1.0), seconds=0.5)

    assert all(looks.look() for _ in range(7))


def test_what_has_changed_is_looked_at_next(bench: Bench, backend: Backend, many: list[str]) -> None:
    looks = Survey(bench.store, clock=Stopwatch(1.0), seconds=0.5, after=many[4])
    bench.store.changes.observe(looks.note)
    bench.store.cancel(many[0], actor="me", reason="no")
    spoil(backend, many[0])

    assert {finding.subject for finding in looks.look()} == {f"job {many[0]}"}
    assert looks.look() == []


def test_a_look_that_has_time_sees_everything_once(bench: Bench, backend: Backend, many: list[str]) -> None:
    for job_id in (many[0], many[5]):
        spoil(backend, job_id)
    looks = Survey(bench.store, clock=Stopwatch(0.0), after=many[3])

    assert {finding.subject for finding in looks.look()} == {f"job {many[0]}", f"job {many[5]}"}


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_opening_a_small_database_looks_at_all_of_it(
    bench: Bench, backend: Backend, many: list[str], chance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "OPEN_SECONDS", 60.0)
    spoil(backend, many[2])

    assert {finding.subject for finding in look_at_open(bench.store, chance=chance)} == {f"job {many[2]}"}


@pytest.mark.parametrize(
    "edited", ["a state that does not exist", "attempts below zero", "a state", "a journal entry", "a journal removed"]
)
def test_corruption_is_found_at_open(bench: Bench, backend: Backend, edited: str) -> None:
    jobs = scene(bench)
    text, code = BEHIND[edited]
    with backend.shell() as shell:
        without_checks(backend, shell)
        put_back = backend.without_triggers(shell)
        for statement in statements(text, jobs):
            shell.execute(statement)
        put_back()

    assert code in {finding.code for finding in look_at_open(bench.store, chance=0.5)}


@on_sqlite
def test_a_damaged_page_is_found_at_open(bench: Bench, backend: Backend) -> None:
    for _ in range(200):
        bench.succeeded()
    backend.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = backend.path  # type: ignore[attr-defined]
    content = bytearray(path.read_bytes())
    at = content.index(b"journal", 4096) // 4096 if b"journal" in content[4096:] else 20
    content[4096 * max(at, 20) : 4096 * max(at, 20) + 64] = b"\xff" * 64
    path.write_bytes(content)

    assert look_at_open(backend.open(None), chance=0.5) != []
