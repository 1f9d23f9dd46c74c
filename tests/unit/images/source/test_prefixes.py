"""What is below a prefix that an operator has allowed, and what only looks like it."""

from __future__ import annotations

import pytest

from holdfast_images.errors import InvalidName
from holdfast_images.source.location import SourceSettings, location_of
from holdfast_images.source.prefixes import checked_prefixes, is_below

ALLOWED = checked_prefixes(
    "https://images.example/golden/ s3://mirror/os file:///srv/images https://mirror.example:8443 file:///srv/my%20images/"
)


@pytest.mark.parametrize(
    "source",
    [
        "https://images.example/golden/debian.tar",
        "https://IMAGES.example:443/golden/debian.tar",
        "https://images.example/golden/a/b.tar?version=3",
        "https://mirror.example:8443/whatever.tar",
        "s3://mirror/os/debian.tar",
        "file:///srv/images/debian.tar",
        "file:///srv/images/deep/debian%20.tar",
        "file:///srv/my%20images/debian.tar",
    ],
)
def test_what_is_below_a_prefix(source: str) -> None:
    assert is_below(location_of(source), ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "https://images.example/goldener/debian.tar",
        "https://images.example/golden/../secret.tar",
        "https://images.example/golden/%2e%2e/secret.tar",
        "https://images.example/golden/%252e%252e/secret.tar",
        "https://images.example/golden/..%2fsecret.tar",
        "https://images.example/golden%2f..%2fsecret.tar",
        "https://images.example/golden/a\\..\\b.tar",
        "https://images.example/golden//etc.tar",
        "https://images.example:8443/golden/debian.tar",
        "https://images.example.evil/golden/debian.tar",
        "http://localhost/golden/debian.tar",
        "https://mirror.example/whatever.tar",
        "s3://mirror/osx/debian.tar",
        "s3://mirrors/os/debian.tar",
        "file:///srv/images2/debian.tar",
        "file:///srv/images/../../etc/shadow",
        "file:///srv/images/%2e%2e/%2e%2e/etc/shadow",
        "file:///srv/im%09ages/debian.tar",
        "file:///etc/shadow",
    ],
)
def test_what_only_looks_like_it(source: str) -> None:
    assert not is_below(location_of(source), ALLOWED)


def test_without_a_prefix_nothing_is_below_one() -> None:
    assert not is_below(location_of("http://localhost/x.tar", settings=SourceSettings(allow_http=True)), ())


def test_the_root_of_all_files_can_be_allowed() -> None:
    assert is_below(location_of("file:///etc/hostname"), checked_prefixes("file:///"))


@pytest.mark.parametrize(
    "text",
    [
        "images.example/golden",
        "ftp://host/",
        "https:///golden",
        "https://user@host/",
        "https://host/#part",
        "https://host:port/",
        "s3:///key",
        "file://host/srv",
        "file:///srv/../etc",
        "https://host/%2e%2e/",
    ],
)
def test_a_prefix_that_would_allow_something_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        checked_prefixes(f"s3://mirror/ {text}")
