"""Settings: the file, the environment and flags, each stronger than the one before, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.cli.main import EXTENSION
from holdfast_images.errors import InvalidName
from holdfast_images.settings import KEYS, Backend, Settings, data_directory, load_settings, variables_of_settings


def loaded(file: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **flags: Any) -> Settings:
    return load_settings(file or {}, environment or {}, flags)


def test_without_a_word_the_defaults_hold() -> None:
    assert loaded() == Settings()


def test_flags_are_stronger_than_the_environment_and_that_than_the_file() -> None:
    file = {"bucket": "file", "region": "file", "endpoint": "https://file"}
    environment = {"HOLDFAST_BUCKET": "environment", "HOLDFAST_REGION": "environment"}
    settings = loaded(file, environment, bucket="flag")

    assert (settings.bucket, settings.region, settings.endpoint) == ("flag", "environment", "https://file")


@pytest.mark.parametrize(
    "name, variable",
    [
        ("bucket", "S3_BUCKET"),
        ("region", "AWS_REGION"),
        ("region", "AWS_DEFAULT_REGION"),
        ("endpoint", "AWS_ENDPOINT_URL"),
        ("endpoint", "AWS_ENDPOINT_URL_S3"),
    ],
)
def test_the_usual_variables_are_read_and_ours_are_stronger(name: str, variable: str) -> None:
    ours = f"HOLDFAST_{name.upper()}"

    assert getattr(loaded(None, {variable: "usual"}), name) == "usual"
    assert getattr(loaded(None, {variable: "usual", ours: "ours"}), name) == "ours"
    assert getattr(loaded({name: "file"}, {variable: "usual"}), name) == "usual"


def test_an_empty_variable_says_nothing() -> None:
    assert loaded({"bucket": "file"}, {"HOLDFAST_BUCKET": "", "S3_BUCKET": ""}).bucket == "file"


def test_texts_of_the_environment_become_what_they_mean() -> None:
    environment = {
        "HOLDFAST_ANONYMOUS": "true",
        "HOLDFAST_CONNECTIONS": "4",
        "HOLDFAST_EXTRACT_TIMEOUT": "60",
        "HOLDFAST_POLICY": "distro",
        "HOLDFAST_LIMITS_ENTRIES": "10",
    }
    settings = loaded(None, environment)

    assert settings.anonymous is True
    assert settings.connections == 4
    assert settings.extract_timeout == 60.0
    assert settings.policy is Policy.DISTRO
    assert settings.limits == Limits(entries=10)


def test_limits_of_the_file_and_the_environment_are_put_together() -> None:
    settings = loaded({"limits": {"entries": 5, "depth": 7}}, {"HOLDFAST_LIMITS_DEPTH": "9"})

    assert settings.limits == Limits(entries=5, depth=9)


@pytest.mark.parametrize(
    "file, environment, flags, named",
    [
        ({"policy": "lax"}, {}, {}, "policy in the settings file"),
        ({"connections": "4"}, {}, {}, "connections in the settings file"),
        ({"connections": 0}, {}, {}, "connections"),
        ({"limits": 3}, {}, {}, "limits"),
        ({"limits": {"entrys": 3}}, {}, {}, "'entrys' is no limit"),
        ({"limits": {"entries": 0}}, {}, {}, "limits.entries"),
        ({}, {"HOLDFAST_CONNECTIONS": "many"}, {}, "HOLDFAST_CONNECTIONS"),
        ({}, {"HOLDFAST_LIMITS_DEPTH": "-1"}, {}, "HOLDFAST_LIMITS_DEPTH"),
        ({}, {"HOLDFAST_HOST": "../x"}, {}, "HOLDFAST_HOST"),
        ({}, {}, {"policy": "lax"}, "--policy"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    file: dict[str, Any], environment: dict[str, str], flags: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidName) as caught:
        loaded(file, environment, **flags)

    assert named in str(caught.value)


def test_a_choice_says_what_there_is_to_choose() -> None:
    with pytest.raises(InvalidName) as caught:
        loaded({"backend": "zfs"})

    assert caught.value.hint == "one of directory, devicemapper"


def test_every_setting_has_a_variable() -> None:
    expected = {*(KEYS - {"limits"}), *(f"limits.{name}" for name in Limits.__struct_fields__)}

    assert {name for name, _ in variables_of_settings()} == expected


def test_the_command_knows_every_key_of_the_file() -> None:
    assert EXTENSION.keys == KEYS


def test_the_source_gets_its_part() -> None:
    source = loaded(endpoint="https://minio.example", region="r", anonymous=True, allow_http=True).source

    assert (source.endpoint, source.region, source.anonymous, source.allow_http) == (
        "https://minio.example",
        "r",
        True,
        True,
    )


def test_data_is_where_it_is_set_or_beside_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))

    assert data_directory(Settings(data=str(tmp_path)), tmp_path / "x" / "holdfast.db") == tmp_path
    assert data_directory(Settings(), tmp_path / "x" / "holdfast.db") == tmp_path / "x"
    assert data_directory(Settings(), None) == tmp_path / "home" / "holdfast"


def test_settings_hold_no_secret() -> None:
    names = {name for name, _ in variables_of_settings()}

    assert not [name for name in names if "secret" in name or "token" in name or "password" in name]
    assert msgspec.structs.asdict(Settings())["backend"] is Backend.DIRECTORY
