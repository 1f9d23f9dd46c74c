"""Every crash point of every kind of flow: in process, by SIGKILL, and in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Flow, Run
from holdfast.testing import CrashExplorer, Scenario
from tests.crash.scenarios import SCENARIOS, Request, Response, observe, record, six_steps, submit_three


def test_six_steps_survive_a_crash_at_every_point(tmp_path: Path, seed: int) -> None:
    explorer = CrashExplorer(SCENARIOS["six steps"], tmp_path)
    report = explorer.explore(pairs=25, seed=seed)
    print(report)

    assert len(report.points) >= 36
    assert report.histories == len(report.points) + 25
    assert not report.violations, str(report)


def test_six_steps_survive_sigkill_at_every_point(tmp_path: Path, seed: int) -> None:
    explorer = CrashExplorer(SCENARIOS["six steps"], tmp_path)
    report = explorer.explore(kill=True, pairs=25, seed=seed)
    print(report)

    assert report.mode == "SIGKILL"
    assert not report.violations, str(report)


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"six steps"}))
def test_every_kind_of_flow_survives_sigkill_at_every_point(name: str, tmp_path: Path, seed: int) -> None:
    explorer = CrashExplorer(SCENARIOS[name], tmp_path)
    report = explorer.explore(kill=True, pairs=5, seed=seed)
    print(f"{name}: {report}")

    assert report.points
    assert not report.violations, str(report)


def test_dependent_delayed_and_keyed_jobs_survive_crashes(tmp_path: Path, seed: int) -> None:
    scenario = Scenario(flows=six_steps, submit=submit_three, observe=observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=True, singles=25, pairs=5, seed=seed)
    print(report)

    assert not report.violations, str(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_pair_of_crashes_is_sampled_deeply(name: str, tmp_path: Path, seed: int) -> None:
    report = CrashExplorer(SCENARIOS[name], tmp_path).explore(kill=True, pairs=400, seed=seed)
    print(f"{name}: {report}")

    assert not report.violations, str(report)


@pytest.mark.exhaustive
def test_dependent_jobs_survive_every_single_crash(tmp_path: Path, seed: int) -> None:
    scenario = Scenario(flows=six_steps, submit=submit_three, observe=observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=True, pairs=100, seed=seed)
    print(report)

    assert not report.violations, str(report)


def appending(directory: Path) -> list[Flow[Any, Any]]:
    """The bug to be found: an effect that is not safe to repeat."""

    def append(run: Run[Request, Response]) -> None:
        with run.effect("append"), (directory / "log").open("a") as file:
            file.write("line\n")

    return [Flow("appending", request=Request, response=Response).start("append", append).commit("record", record)]


def leaking(directory: Path) -> list[Flow[Any, Any]]:
    """Another: a file whose name is different each time, so that a crash leaves one behind."""

    def leak(run: Run[Request, Response]) -> None:
        name = directory / f"temp-{run.exec_id}"
        with run.effect("leak"):
            name.write_text("")
        name.unlink()

    return [Flow("leaking", request=Request, response=Response).start("leak", leak).commit("record", record)]


@pytest.mark.parametrize("flows,name", [(appending, "appending"), (leaking, "leaking")])
@pytest.mark.parametrize("kill", [False, True])
def test_the_explorer_finds_a_planted_bug(flows: Any, name: str, kill: bool, tmp_path: Path) -> None:
    scenario = Scenario(flows=flows, submit=lambda engine: engine.submit(name, Request()), observe=observe)
    report = CrashExplorer(scenario, tmp_path).explore(kill=kill)

    assert f"effect.{name.removesuffix('ing')}.after" in {violation.point for violation in report.violations}


def test_the_explorer_finds_a_job_that_never_ends(tmp_path: Path) -> None:
    def flows(directory: Path) -> list[Flow[Any, Any]]:
        def step(run: Run[Request, Response]) -> None:
            with run.effect("touch"):
                (directory / "marker").touch()

        flow = Flow("vanishing", request=Request, response=Response)
        # After the first life nobody registers the flow any more: the job is stranded.
        return [] if (directory / "marker").exists() else [flow.start("step", step).commit("record", record)]

    def submit(engine: Any) -> None:
        if engine.flows:
            engine.submit("vanishing", Request())

    scenario = Scenario(flows=flows, submit=submit, observe=lambda engine, directory: None)
    report = CrashExplorer(scenario, tmp_path).explore(kill=True)

    assert any("still" in violation.problem for violation in report.violations)
