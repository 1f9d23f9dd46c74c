"""Which jobs can go on under a changed definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.flow import Definition, incompatibility

steps = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True).map(tuple)


def definition(*names: str, version: str = "1") -> Definition:
    return Definition("demo", version, names)


@given(steps, steps, st.sampled_from(["1", "2"]))
def test_a_job_that_has_finished_nothing_can_go_on_under_anything(
    old: tuple[str, ...], new: tuple[str, ...], version: str
) -> None:
    assert incompatibility([], definition(*old), definition(*new, version=version)) is None


@given(steps, st.data())
def test_a_job_can_go_on_under_its_own_definition(names: tuple[str, ...], data: st.DataObject) -> None:
    done = names[: data.draw(st.integers(0, len(names) - 1))]

    assert incompatibility(done, definition(*names), definition(*names)) is None


@given(steps, steps, st.data())
def test_a_job_goes_on_exactly_when_what_it_did_still_comes_first(
    old: tuple[str, ...], new: tuple[str, ...], data: st.DataObject
) -> None:
    done = old[: data.draw(st.integers(1, len(old)))]
    reason = incompatibility(done, definition(*old), definition(*new))

    goes_on = new[: len(done)] == done and len(new) > len(done)
    assert (reason is None) == goes_on


def test_a_new_version_stops_jobs_that_have_begun() -> None:
    reason = incompatibility(["a"], definition("a", "b"), definition("a", "b", version="2"))

    assert reason == "version changed from '1' to '2' after 1 step(s) had finished"


def test_the_reason_names_the_step_that_changed() -> None:
    assert incompatibility(["a", "b"], definition("a", "b", "c"), definition("a", "x", "c")) == (
        "finished step 2 was 'b' and is now 'x'"
    )
    assert incompatibility(["a", "b"], definition("a", "b", "c"), definition("a")) == (
        "finished step 2 was 'b' and is now None"
    )


def test_nothing_left_to_commit_is_a_reason() -> None:
    reason = incompatibility(["a", "b"], definition("a", "b", "c"), definition("a", "b"))

    assert reason is not None
    assert "nothing is left to commit" in reason
