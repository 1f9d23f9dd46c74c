"""The guard looks beside every worker, also one that a program has embedded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Engine, Finding, Severity
from holdfast.core.step import EndCode
from holdfast.errors import BadInput, JobNotFoundError, ReasonRequiredError
from holdfast.store.rows import new_ulid
from holdfast.worker.telemetry import Telemetry
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.backends import Backend
from tests.support.flows import Answer, Ask, AskRun, Gate, flow_of, note
from tests.support.waiting import PATIENCE, eventually


@pytest.mark.damages_the_database
@pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)
def test_an_edit_of_an_ended_job_is_found_while_the_worker_works(open_engine: OpenEngine, home: Backend) -> None:
    flow = flow_of(note("x"))
    engine = open_engine(flow)
    telemetry = Telemetry()
    with engine.worker(**QUICK, check_interval=0.1, telemetry=telemetry):
        job_id = engine.submit(flow, Ask())
        engine.wait(job_id, PATIENCE)
        with home.shell() as shell:
            put_back = home.without_triggers(shell)
            shell.execute("UPDATE jobs SET failures = 7")
            put_back()

        eventually(lambda: telemetry.findings["count-wrong"] > 0)
    assert engine.check() != []


def exits() -> list[Finding]:
    raise SystemExit(3)


def fails() -> list[Finding]:
    raise KeyError("no such row")


def finds() -> list[Finding]:
    return [Finding(code="row-lost", severity=Severity.ERROR, subject="order 7", message="it is gone")]


@pytest.mark.damages_the_database
def test_a_check_of_the_application_that_fails_hides_nothing(open_engine: OpenEngine, home: Backend) -> None:
    flow = flow_of(note("x"))
    engine = open_engine(flow)
    telemetry = Telemetry()
    checks: list[Any] = [exits, fails, lambda: ["nonsense"], finds]
    with engine.worker(**QUICK, check_interval=0.1, telemetry=telemetry, checks=checks):
        engine.wait(engine.submit(flow, Ask()), PATIENCE)
        with home.shell() as shell:
            put_back = home.without_triggers(shell)
            shell.execute("UPDATE jobs SET failures = 7")
            put_back()

        eventually(lambda: telemetry.findings["count-wrong"] > 0 and telemetry.findings["row-lost"] > 1)
    assert engine.check() != []


def test_a_check_is_a_function(open_engine: OpenEngine) -> None:
    engine = open_engine(flow_of(note("x")))

    nonsense: list[Any] = ["nonsense"]
    with pytest.raises(BadInput), engine.worker(**QUICK, checks=nonsense):
        pass


def hanging(gate: Gate) -> Callable[[AskRun], Answer]:
    def hang(run: AskRun) -> Answer:
        gate.pass_through()
        return Answer()

    return hang


@pytest.mark.parametrize("stall", ["automatic", "approval"])
def test_a_stall_is_dealt_with_as_configured(open_engine: OpenEngine, stall: str) -> None:
    gate = Gate()
    flow = flow_of(hanging(gate), stall_after=0.2)
    engine = open_engine(flow)
    with engine.worker(**QUICK, check_interval=0.1, stall=stall):
        job_id = engine.submit(flow, Ask())
        if stall == "approval":
            eventually(lambda: engine.recover_stalled(job_id, reason="it hangs"))
        eventually(lambda: EndCode.STALLED in [execution.code for execution in engine.store.executions(job_id)])
        gate.open()
    by = {entry.actor.partition(":")[0] for entry in engine.store.journal(job_id) if "no progress" in entry.reason}
    assert by == ({"guard"} if stall == "automatic" else {"client"})


def test_only_the_job_that_is_named_is_recovered(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(hanging(gate), stall_after=0.2)
    engine: Engine = open_engine(flow)
    with engine.worker(**QUICK, check_interval=0):
        first, other = engine.submit(flow, Ask()), engine.submit(flow, Ask())
        eventually(lambda: engine.recover_stalled(first, reason="it hangs"))
        untouched = [execution.code for execution in engine.store.executions(other)]
        again = engine.recover_stalled(first, reason="it hangs")
        with pytest.raises(ReasonRequiredError):
            engine.recover_stalled(other, reason=" ")
        with pytest.raises(JobNotFoundError):
            engine.recover_stalled(new_ulid(engine.store.now()), reason="it hangs")
        gate.open()
    assert (untouched, again) == ([None], False)
