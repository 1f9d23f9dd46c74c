"""What a flow costs the database, in counts that a busy machine cannot move: transactions, statements, instructions.

The limits are what was measured, and a little more: whoever exceeds one has added work to every job.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast import Engine, Flow
from holdfast.crash_points import set_hook
from holdfast.store.commands import Claim, Write
from holdfast.store.open import open_store
from tests.support.bench import Bench, SettableClock, commit, finish, finish_step
from tests.support.flows import Answer, Ask, note, write_effect

JOBS = 4
FEW, MANY = 32, 96


class CountingConnection(sqlite3.Connection):
    """Counts the statements that are executed through it, and the instructions of SQLite's machine they take."""

    statements: ClassVar[int] = 0
    instructions: ClassVar[int] = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_progress_handler(self._count, 1)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        CountingConnection.statements += 1
        return super().execute(sql, *parameters)

    @staticmethod
    def _count() -> int:
        CountingConnection.instructions += 1
        return 0


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = partial(sqlite3.connect, factory=CountingConnection)
    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.fixture
def commits() -> Iterator[Counter[str]]:
    """Durable transactions, each of which is one sync of the disk, by verb."""
    counted: Counter[str] = Counter()

    def count(point: str) -> None:
        if point.endswith(".after-commit"):
            counted[point.removesuffix(".after-commit")] += 1

    set_hook(count)
    yield counted
    set_hook(None)


def test_a_flow_alone_takes_one_transaction_to_claim_and_one_for_each_write(
    tmp_path: Path, commits: Counter[str]
) -> None:
    flow: Flow[Ask, Answer] = Flow("three", request=Ask, response=Answer)
    flow.start("a", note("a")).to("b", note("b")).commit("c", write_effect)
    with Engine.open(tmp_path, flows=[flow]) as engine:
        job_ids = [engine.submit(flow, Ask()) for _ in range(JOBS)]
        with engine.worker(concurrency=1):
            for job_id in job_ids:
                engine.wait(job_id, timeout=60)

    assert {verb: commits[verb] for verb in commits if verb == "claim" or verb.startswith("write.")} == {
        "claim": JOBS,
        "write.FinishStep": 2 * JOBS,
        "write.Commit": JOBS,
        "write.Finish": JOBS,
    }


class Costs:
    """Of the verbs that run a job from its submission to its end, for batches of a size."""

    def __init__(self, place: Path, jobs: int) -> None:
        self.statements: dict[str, int] = {}
        self.instructions: dict[str, int] = {}
        kinds: dict[str, Callable[[Claim], Write]] = {
            "finish step": finish_step,
            "commit": lambda claim: commit(claim, position=1),
            "finish": finish,
        }
        with closing(open_store(place)) as store:
            bench = Bench(store, SettableClock())
            with self._counted("submit"):
                store.submit([bench.new_job() for _ in range(jobs)], actor="client")
            with self._counted("claim"):
                claims = bench.claim(limit=jobs)
            assert len(claims) == jobs
            for name, make in kinds.items():
                with self._counted(name):
                    answers = bench.write(*(make(claim) for claim in claims))
                assert answers == [None] * jobs

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        statements, instructions = CountingConnection.statements, CountingConnection.instructions
        yield
        self.statements[name] = CountingConnection.statements - statements
        self.instructions[name] = CountingConnection.instructions - instructions


@pytest.mark.parametrize("jobs", [4, 7, 8, 16, FEW])
def test_a_batch_takes_no_more_statements_than_two_writes(tmp_path: Path, jobs: int) -> None:
    assert Costs(tmp_path / "batch", jobs).statements == Costs(tmp_path / "two", 2).statements


def test_a_batch_takes_this_many_statements(tmp_path: Path) -> None:
    """BEGIN and COMMIT included; each of them takes the interpreter lock, and may have to wait for it."""
    most = {"submit": 8, "claim": 10, "finish step": 3, "commit": 7, "finish": 6}

    assert Costs(tmp_path, FEW).statements == most


def test_a_job_more_takes_this_many_instructions(tmp_path: Path) -> None:
    few, many = Costs(tmp_path / "few", FEW), Costs(tmp_path / "many", MANY)
    each = {name: (many.instructions[name] - few.instructions[name]) / (MANY - FEW) for name in few.instructions}
    most = {"submit": 403, "claim": 1147, "finish step": 142, "commit": 574, "finish": 676}

    assert {name: count for name, count in each.items() if count > most[name]} == {}
