"""Settings by file, environment and flag: the strongest wins, and what is wrong is told before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.images.driving import HOSTILE, ImageHoldfast
from tests.support.images.archives import archive, directory, symlink

ABSOLUTE = archive(directory(b"rootfs/"), symlink(b"rootfs/shell", b"/bin/sh"))


def write(holdfast: ImageHoldfast, text: str, place: str = ".config/holdfast/config.toml") -> Path:
    path = holdfast.directory / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_file_decides_where_nothing_else_is_said(holdfast: ImageHoldfast) -> None:
    write(holdfast, 'policy = "distro"\n')

    assert holdfast("process-image", "--source", holdfast.source(ABSOLUTE)).code == 0


def test_the_environment_is_stronger_than_the_file(holdfast: ImageHoldfast) -> None:
    write(holdfast, 'policy = "distro"\n')

    assert holdfast("process-image", "--source", holdfast.source(ABSOLUTE), HOLDFAST_POLICY="strict").code == 3


def test_a_flag_is_stronger_than_both(holdfast: ImageHoldfast) -> None:
    write(holdfast, 'policy = "strict"\n')
    words = ("process-image", "--source", holdfast.source(ABSOLUTE), "--policy", "distro")

    assert holdfast(*words, HOLDFAST_POLICY="strict").code == 0


@pytest.mark.parametrize("how", ["flag", "environment", "default"])
def test_the_file_is_named_or_found(holdfast: ImageHoldfast, how: str) -> None:
    path = write(holdfast, 'policy = "distro"\n', ".config/holdfast/config.toml" if how == "default" else "own.toml")
    words = ["--config", str(path)] if how == "flag" else []
    variable = str(path) if how == "environment" else None

    done = holdfast("inspect", holdfast.source(ABSOLUTE).removeprefix("file://"), *words, HOLDFAST_CONFIG=variable)

    assert done.code == 0


def test_the_file_says_where_the_state_is_for_every_command(holdfast: ImageHoldfast) -> None:
    state = holdfast.directory / "elsewhere"
    write(holdfast, f'state = "{state}"\nactor = "alice"\n')
    holdfast.ok("process-image", "--source", holdfast.source(), "-q", HOLDFAST_STATE=None)
    jobs = holdfast.json("jobs", HOLDFAST_STATE=None)["jobs"]
    [job] = [job["job_id"] for job in jobs if job["flow"] == "process-image"]
    journal = holdfast.json("job", "show", job, "--journal", "100", HOLDFAST_STATE=None)["journal"]

    assert len(jobs) == 4
    assert "alice" in {entry["actor"] for entry in journal}
    assert (state / "holdfast.db").exists()


def test_the_environment_overrules_the_state_of_the_file_even_by_another_name(holdfast: ImageHoldfast) -> None:
    write(holdfast, 'store = "sqlite:////nowhere/at/all.db"\n')
    holdfast.ok("process-image", "--source", holdfast.source(), "-q")

    assert holdfast.database.exists()


@pytest.mark.parametrize(
    "text, named",
    [
        ('polcy = "distro"', "'polcy' is no setting"),
        ("policy = 3", "policy"),
        ("[limits]\nentrys = 1", "'entrys' is no limit"),
        ("policy =", "is not TOML"),
        ("state = 3", "state is not a text"),
        ('log_format = "xml"', "log_format"),
    ],
)
def test_a_mistake_in_the_file_is_told_and_nothing_done(holdfast: ImageHoldfast, text: str, named: str) -> None:
    write(holdfast, text)
    done = holdfast("process-image", "--source", holdfast.source(), "--json")

    assert done.code == 2
    assert named in done.error["message"]
    assert not holdfast.state.exists()


def test_an_unknown_key_names_those_that_are_known(holdfast: ImageHoldfast) -> None:
    write(holdfast, "colour = 1")
    done = holdfast("images", "--json")

    assert "bucket" in done.error["hint"]
    assert "state" in done.error["hint"]


def test_a_file_that_is_named_and_not_there_is_a_mistake(holdfast: ImageHoldfast) -> None:
    assert holdfast("images", "--config", "nowhere.toml").code == 2


def test_limits_are_settings_too(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(), "--json", HOLDFAST_LIMITS_ENTRIES="3")

    assert done.code == 3
    assert "3" in done.error["message"]


def test_files_and_devices_are_where_data_says(holdfast: ImageHoldfast) -> None:
    data = holdfast.directory / "data"
    processed = holdfast.process(holdfast.source(), "--data", str(data))

    assert Path(processed["local_path"]).parent == data / "images"
    assert holdfast.left() == []


def test_a_backend_without_its_pool_is_refused_before_anything_is_fetched(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(), "--json", HOLDFAST_BACKEND="devicemapper")

    assert done.code == 1
    assert "holdfast pool create" in done.error["hint"]
    assert holdfast.left() == []


def test_what_the_catalog_has_is_listed_without_the_devices(holdfast: ImageHoldfast) -> None:
    holdfast.process(holdfast.source(), "--image-id", "demo")
    listed = [
        holdfast(*words, HOLDFAST_BACKEND="devicemapper").code
        for words in (("images",), ("snapshots",), ("image", "show", "demo"))
    ]

    assert listed == [0, 0, 0]
    assert holdfast("verify-system", HOLDFAST_BACKEND="devicemapper").code == 7


def test_inspect_obeys_the_same_settings(holdfast: ImageHoldfast) -> None:
    holdfast.source(HOSTILE)
    strict = holdfast("inspect", "image.tar", "--json").data
    distro = holdfast("inspect", "image.tar", "--json", HOLDFAST_POLICY="distro").data

    assert len(strict["findings"]) == 2
    assert strict["policy"] == "strict"
    assert distro["policy"] == "distro"
