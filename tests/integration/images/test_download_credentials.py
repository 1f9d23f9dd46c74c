"""Whose keys a download is signed with: those that AWS's own tools would use, or a clear word why not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from holdfast_images.errors import AccessDenied, SourceUnavailable
from holdfast_images.source.fetch import fetch
from holdfast_images.source.location import S3Object, SourceSettings
from tests.support.images.lying_server import Exchange, LyingServer
from tests.support.images.token_server import ROLE, TokenServer

SETTINGS = SourceSettings(range_bytes=64 << 10, backoff_seconds=0.001, tries=2)
CONTENT = os.urandom(100_000)


@pytest.fixture
def aws_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home, and nothing else that could give keys."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "home/.aws").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def web(aws_home: Path) -> Iterator[LyingServer]:
    with LyingServer().running() as server:
        server.content = CONTENT
        yield server


@pytest.fixture
def tokens(aws_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    with TokenServer().running() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        yield server


def scopes_of(web: LyingServer, tmp_path: Path, **options: object) -> set[tuple[str, str]]:
    """Key id and region of every request of a download."""
    location = S3Object(bucket="images", key="a.tar", endpoint=web.url, **options)  # type: ignore[arg-type]
    fetch(location, tmp_path / "x", limit=1 << 30, settings=SETTINGS)
    assert (tmp_path / "x").read_bytes() == CONTENT
    credentials = [parse_qs(urlsplit(path).query)["X-Amz-Credential"][0].split("/") for path, _ in web.asked]
    return {(parts[0], parts[2]) for parts in credentials}


def refusal_of(web: LyingServer, tmp_path: Path) -> AccessDenied:
    with pytest.raises(AccessDenied) as caught:
        scopes_of(web, tmp_path)
    assert web.asked == []
    return caught.value


CREDENTIALS = """
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = a%b
[work]
aws_access_key_id = WORK
aws_secret_access_key = secret
aws_session_token = token
"""
CONFIG = """
[default]
region = eu-north-1
[profile work]
region = eu-west-3
s3 =
    addressing_style = path
"""


@pytest.mark.parametrize(
    "variables, scope",
    [
        ({}, ("DEFAULT", "eu-north-1")),
        ({"AWS_PROFILE": "work"}, ("WORK", "eu-west-3")),
        ({"AWS_DEFAULT_PROFILE": "work"}, ("WORK", "eu-west-3")),
        # As boto3 has it: keys in the environment are stronger than a profile's.
        ({"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "s"}, ("E", "eu-west-3")),
    ],
)
def test_a_profile_has_keys_and_a_region(
    web: LyingServer,
    aws_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    scope: tuple[str, str],
) -> None:
    (aws_home / ".aws/credentials").write_text(CREDENTIALS)
    (aws_home / ".aws/config").write_text(CONFIG)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert scopes_of(web, tmp_path) == {scope}


def test_files_may_be_elsewhere_and_a_profile_in_the_config_alone(
    web: LyingServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c").write_text("[profile odd]\naws_access_key_id=ODD\naws_secret_access_key=s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "c"))
    monkeypatch.setenv("AWS_PROFILE", "odd")

    assert scopes_of(web, tmp_path, region="eu-central-1") == {("ODD", "eu-central-1")}


@pytest.mark.parametrize(
    "profile, words, hint",
    [
        ("sso_session = corp\nsso_account_id = 1", "signs in by SSO", "export-credentials --profile p --format env"),
        ("sso_start_url = https://x", "signs in by SSO", "export-credentials"),
        ("credential_process = /bin/keys", "credential_process", "export-credentials"),
        ("role_arn = r\nsource_profile = p\nmfa_serial = m", "asks for a code", "export-credentials"),
        ("aws_access_key_id = X", "only one is set", "set both"),
        ("role_arn = r", "has no keys to do so", "source_profile"),
    ],
)
def test_a_profile_that_is_not_enough_says_why_and_what_to_do(
    web: LyingServer,
    aws_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    words: str,
    hint: str,
) -> None:
    (aws_home / ".aws/config").write_text(f"[profile p]\n{profile}\n")
    monkeypatch.setenv("AWS_PROFILE", "p")
    error = refusal_of(web, tmp_path)

    assert words in str(error)
    assert hint in (error.hint or "")


def test_a_profile_that_is_not_there_is_named(
    web: LyingServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "gone")

    assert "there is no AWS profile 'gone' in" in str(refusal_of(web, tmp_path))


def test_a_file_that_cannot_be_understood_is_told_without_its_lines(
    web: LyingServer, aws_home: Path, tmp_path: Path
) -> None:
    (aws_home / ".aws/credentials").write_text("aws_secret_access_key = hush\n")
    error = refusal_of(web, tmp_path)

    assert str(aws_home / ".aws/credentials") in str(error)
    assert "hush" not in f"{error!r}"


def test_without_any_keys_all_places_are_told(web: LyingServer, aws_home: Path, tmp_path: Path) -> None:
    error = refusal_of(web, tmp_path)

    assert "neither in the environment nor in a profile" in str(error)
    assert "AWS_PROFILE" in (error.hint or "")
    assert "--anonymous" in (error.hint or "")


def test_a_web_identity_takes_its_role(
    web: LyingServer, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("proof\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)

    assert scopes_of(web, tmp_path) == {("AK1", "us-east-1")}
    fields = parse_qs(tokens.asked[0][0])
    assert (fields["WebIdentityToken"], fields["RoleArn"]) == (["proof"], [ROLE])
    assert all("X-Amz-Security-Token=token" in path for path, _ in web.asked)


def test_a_web_identity_whose_token_cannot_be_read_says_so(
    web: LyingServer, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "gone"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)

    assert f"{tmp_path / 'gone'}, cannot be read: No such file" in str(refusal_of(web, tmp_path))


def test_a_role_that_is_not_given_says_what_sts_says(
    web: LyingServer, tokens: TokenServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.refusal = "AccessDenied"
    (aws_home / ".aws/credentials").write_text(CREDENTIALS)
    (aws_home / ".aws/config").write_text(f"[profile p]\nrole_arn = {ROLE}\nsource_profile = work\n")
    monkeypatch.setenv("AWS_PROFILE", "p")

    assert f"the role {ROLE} is not given: AccessDenied: No." in str(refusal_of(web, tmp_path))


def test_a_profile_takes_a_role_with_the_keys_of_another(
    web: LyingServer, tokens: TokenServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (aws_home / ".aws/credentials").write_text(CREDENTIALS)
    (aws_home / ".aws/config").write_text(f"[profile p]\nrole_arn = {ROLE}\nsource_profile = work\nexternal_id = 7\n")
    monkeypatch.setenv("AWS_PROFILE", "p")

    assert scopes_of(web, tmp_path) == {("AK1", "us-east-1")}
    fields = parse_qs(urlsplit(tokens.asked[0][0]).query)
    assert fields["X-Amz-Credential"][0].startswith("WORK/")
    assert fields["ExternalId"] == ["7"]


def test_sts_out_of_reach_may_pass(
    web: LyingServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("proof")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")

    with pytest.raises(SourceUnavailable, match="cannot be asked for"):
        scopes_of(web, tmp_path)


def test_a_container_has_a_role(
    web: LyingServer, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{tokens.url}/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod")
    # What gives keys is never asked through a proxy.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert scopes_of(web, tmp_path) == {("AK1", "us-east-1")}
    assert tokens.asked[0][1]["Authorization"] == "pod"


def test_a_container_is_not_asked_in_clear_elsewhere(
    web: LyingServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/keys")

    assert "by https only" in str(refusal_of(web, tmp_path))


def by_web_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sts: str) -> None:
    (tmp_path / "token").write_text("proof")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts)


def by_container(monkeypatch: pytest.MonkeyPatch, _tmp_path: Path, agent: str) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent}/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod")


def by_instance(monkeypatch: pytest.MonkeyPatch, _tmp_path: Path, metadata: str) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)


@pytest.mark.parametrize("asking", [by_web_identity, by_container, by_instance])
def test_what_proves_who_asks_is_shown_to_nobody_that_a_redirect_names(
    web: LyingServer,
    tokens: TokenServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asking: Callable[[pytest.MonkeyPatch, Path, str], None],
) -> None:
    asking(monkeypatch, tmp_path, tokens.url)
    with TokenServer().running() as other:
        tokens.elsewhere = f"{other.url}/keys"
        refusal_of(web, tmp_path)

        assert tokens.asked
        assert other.asked == []


@pytest.mark.parametrize("asking", [by_web_identity, by_container])
def test_who_gives_keys_and_speaks_no_http_is_named(
    web: LyingServer,
    tokens: TokenServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asking: Callable[[pytest.MonkeyPatch, Path, str], None],
) -> None:
    asking(monkeypatch, tmp_path, tokens.url)
    tokens.raw = b"\x1b[2Jno such thing\r\n\r\n"

    with pytest.raises(SourceUnavailable, match=r"(role .*|the container's agent) cannot be asked for") as caught:
        scopes_of(web, tmp_path)
    assert str(caught.value).isprintable()


def test_metadata_that_speak_no_http_give_no_role(
    web: LyingServer, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_instance(monkeypatch, tmp_path, tokens.url)
    tokens.raw = b"no such thing\r\n\r\n"

    assert "this host has no role" in str(refusal_of(web, tmp_path))


def test_sts_is_not_asked_in_clear_elsewhere(
    web: LyingServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_web_identity(monkeypatch, tmp_path, "http://sts.example.com")

    assert "not asked for in clear at sts.example.com" in str(refusal_of(web, tmp_path))


def test_sts_is_asked_in_clear_elsewhere_if_that_is_allowed(
    web: LyingServer, aws_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_web_identity(monkeypatch, tmp_path, "http://sts.invalid")
    location = S3Object(bucket="images", key="a.tar", endpoint=web.url)

    with pytest.raises(SourceUnavailable, match="cannot be asked for"):
        fetch(location, tmp_path / "x", limit=1, settings=msgspec.structs.replace(SETTINGS, allow_http=True))


def test_an_instance_has_a_role(
    web: LyingServer, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", tokens.url)

    assert scopes_of(web, tmp_path) == {("AK2", "us-east-1")}
    assert tokens.asked[1][1]["X-Aws-Ec2-Metadata-Token"] == "instance-token"


def test_keys_that_expire_soon_are_asked_for_anew(
    web: LyingServer, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.lasts = 10.0
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{tokens.url}/keys")
    cuts = iter([True])

    def cut(exchange: Exchange) -> None:
        exchange.honest(cut=100 if next(cuts, False) else None)

    web.lie = cut

    assert {key for key, _ in scopes_of(web, tmp_path)} >= {"AK1", "AK2"}
