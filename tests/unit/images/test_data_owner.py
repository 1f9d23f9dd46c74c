"""Whose data directory it is, by its mark alone."""

from __future__ import annotations

import msgspec
import pytest

from holdfast_images.host import DataClaim, Owner, judge

OWN = Owner(store="s1", database="/a/holdfast.db", directory="/d")


@pytest.mark.parametrize(
    "changes, is_another, claim",
    [
        ({}, False, DataClaim.OWN),
        ({"machine": "m"}, False, DataClaim.OWN),
        ({"store": "s2", "database": "/b/holdfast.db"}, True, DataClaim.FOREIGN),
        ({"store": "s2", "database": "/b/holdfast.db"}, False, DataClaim.FOREIGN),
        ({"store": "s2"}, False, DataClaim.ADOPT),
        ({"host": "web-2"}, False, DataClaim.FOREIGN),
        ({"store": "s2", "host": "web-2"}, False, DataClaim.FOREIGN),
        ({"database": "/b/holdfast.db"}, True, DataClaim.FOREIGN),
        ({"database": "/b/holdfast.db"}, False, DataClaim.ADOPT),
        ({"database": "/b/holdfast.db", "directory": "/e"}, True, DataClaim.ADOPT),
        ({"directory": "/e"}, False, DataClaim.ADOPT),
    ],
)
def test_a_directory_is_claimed_only_if_nobody_else_can_have_it(
    changes: dict[str, str], is_another: bool, claim: DataClaim
) -> None:
    assert judge(msgspec.structs.replace(OWN, **changes), OWN, is_another=is_another) is claim


def test_what_was_never_marked_is_adopted() -> None:
    assert judge(None, OWN, is_another=False) is DataClaim.ADOPT


def test_two_stores_without_files_are_told_apart_by_their_ids() -> None:
    on_a_server = Owner(store="s1", directory="/d", host="web-1")

    assert judge(msgspec.structs.replace(on_a_server, store="s2"), on_a_server, is_another=False) is DataClaim.FOREIGN
