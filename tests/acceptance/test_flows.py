"""Flows: listed, drawn, and compared with what is under way before a deploy."""

from __future__ import annotations

import pytest

from tests.acceptance.driving import APP, Holdfast

STEP_ADDED_IN_FRONT = '.start("look", prepare).to("prepare", prepare).to("wait"'
RENAMED = APP.replace('.start("prepare", prepare).to("wait"', STEP_ADDED_IN_FRONT)
REQUEST_CHANGED = APP.replace("    name: str\n", "    language: str\n    name: str\n")
LATER_STEP_ADDED = APP.replace('.commit("say", say)', '.to("think", prepare).commit("say", say)')


def test_flows_are_listed_from_the_app_and_the_store(history: Holdfast) -> None:
    listed = {flow["flow"]: flow for flow in history.json("flows", "list")["flows"]}

    assert listed["gate"]["steps"] == ["prepare", "wait", "say"]
    assert all(flow["in_app"] for flow in listed.values())
    stored = history.json("flows", "list", HOLDFAST_APP=None)["flows"]
    assert {flow["flow"] for flow in stored} == {"greet", "doomed", "broken", "both", "later"}
    assert not any(flow["in_app"] for flow in stored)


def test_flows_are_listed_before_there_is_a_state(holdfast: Holdfast) -> None:
    assert "prepare → wait → say" in holdfast.ok("flows", "list")
    assert not holdfast.state.exists()


def test_a_live_worker_is_counted(holdfast: Holdfast) -> None:
    with holdfast.worker():
        listed = holdfast.json("flows", "list")["flows"]

    assert {flow["workers"] for flow in listed} == {1}


@pytest.mark.parametrize("kind, first", [("mermaid", "flowchart TD"), ("dot", 'digraph "gate"'), ("text", "gate (")])
def test_a_flow_is_drawn(holdfast: Holdfast, kind: str, first: str) -> None:
    drawn = holdfast.ok("flows", "graph", "gate", "--format", kind)

    assert drawn.startswith(first)
    assert all(step in drawn for step in ("prepare", "wait", "say"))


@pytest.mark.parametrize("kind, first", [("mermaid", "stateDiagram-v2"), ("dot", "digraph job"), ("text", "job:")])
def test_without_a_flow_the_life_of_a_job_is_drawn(holdfast: Holdfast, kind: str, first: str) -> None:
    drawn = holdfast.ok("flows", "graph", "--format", kind, HOLDFAST_APP=None)

    assert drawn.startswith(first)
    assert holdfast.json("flows", "graph", "--format", kind)["diagram"] == drawn


def test_the_life_of_an_execution_is_drawn_on_request(holdfast: Holdfast) -> None:
    assert "in_progress" in holdfast.ok("flows", "graph", "--executions")


def test_drawing_what_is_not_there_is_refused(holdfast: Holdfast) -> None:
    unknown = holdfast("flows", "graph", "nope", "--json")

    assert (unknown.code, unknown.error["type"]) == (2, "UnknownFlowError")
    assert holdfast("flows", "graph", "gate", "--executions").code == 2
    assert holdfast("flows", "graph", "gate", HOLDFAST_APP=None).code == 2


@pytest.fixture
def under_way(holdfast: Holdfast) -> str:
    """A job whose first step has finished."""
    job_id = holdfast.submit("gate", '{"name": "never"}')
    with holdfast.worker() as worker:
        worker.wait_for("waiting")
        worker.stop()
    return job_id


@pytest.mark.parametrize("app", [APP, LATER_STEP_ADDED], ids=["the same", "a step that has not run"])
def test_a_compatible_deploy_quarantines_nothing(holdfast: Holdfast, under_way: str, app: str) -> None:
    (holdfast.directory / "app.py").write_text(app)
    planned = holdfast.json("flows", "plan")

    assert planned == {"unfinished": 1, "would_quarantine": [], "unregistered_flows": []}


@pytest.mark.parametrize(
    "app, reason",
    [(RENAMED, "finished step 1 was 'prepare' and is now 'look'"), (REQUEST_CHANGED, "does not decode")],
    ids=["steps", "request"],
)
def test_the_plan_says_what_a_deploy_would_quarantine(
    holdfast: Holdfast, under_way: str, app: str, reason: str
) -> None:
    (holdfast.directory / "app.py").write_text(app)
    before = holdfast.content()
    planned = holdfast("flows", "plan", "--json")

    assert planned.code == 7
    [doomed] = planned.data["would_quarantine"]
    assert (doomed["job_id"], doomed["state"]) == (under_way, "pending")
    assert reason in doomed["reason"]
    assert holdfast.content() == before
    # And so it comes.
    holdfast.run_all()
    explained = holdfast.json("job", "explain", under_way)
    assert explained["code"] == "definition-changed"
    assert reason in explained["sentence"]


def test_the_plan_mentions_flows_that_are_not_in_the_app(holdfast: Holdfast, under_way: str) -> None:
    ended = holdfast("flows", "plan", "--app", "app:greet")

    assert ended.code == 0
    assert "flow gate has unfinished jobs and is not in the app" in ended.err
