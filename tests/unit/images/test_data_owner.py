"""Whose data directory it is, by its mark alone."""

from __future__ import annotations

import msgspec
import pytest

from holdfast_images.data_owner import Claim, Owner, judge

OWN = Owner(store="s1", database="/a/holdfast.db", directory="/d")


@pytest.mark.parametrize(
    "changes, is_another, claim",
    [
        ({}, False, Claim.OWN),
        ({"machine": "m"}, False, Claim.OWN),
        ({"store": "s2", "database": "/b/holdfast.db"}, True, Claim.FOREIGN),
        ({"store": "s2", "database": "/b/holdfast.db"}, False, Claim.FOREIGN),
        ({"store": "s2"}, False, Claim.ADOPT),
        ({"host": "web-2"}, False, Claim.FOREIGN),
        ({"store": "s2", "host": "web-2"}, False, Claim.FOREIGN),
        ({"database": "/b/holdfast.db"}, True, Claim.FOREIGN),
        ({"database": "/b/holdfast.db"}, False, Claim.ADOPT),
        ({"database": "/b/holdfast.db", "directory": "/e"}, True, Claim.ADOPT),
        ({"directory": "/e"}, False, Claim.ADOPT),
    ],
)
def test_a_directory_is_claimed_only_if_nobody_else_can_have_it(
    changes: dict[str, str], is_another: bool, claim: Claim
) -> None:
    assert judge(msgspec.structs.replace(OWN, **changes), OWN, is_another=is_another) is claim


def test_what_was_never_marked_is_adopted() -> None:
    assert judge(None, OWN, is_another=False) is Claim.ADOPT


def test_two_stores_without_files_are_told_apart_by_their_ids() -> None:
    on_a_server = Owner(store="s1", directory="/d", host="web-1")

    assert judge(msgspec.structs.replace(on_a_server, store="s2"), on_a_server, is_another=False) is Claim.FOREIGN
