"""Every known attack is refused, in every form, for its own reason, and in every compression."""

from __future__ import annotations

import random
from itertools import product

import pytest

from holdfast_images.archive.entry import ArchiveSeverity, Policy, Reason
from tests.hostile.corpus import ATTACKS, Attack
from tests.support.images.archives import COMPRESSED, Compression, Form, compressed, inspected

Case = tuple[Attack, Form, Policy]

CASES: list[Case] = [
    (attack, form, policy) for attack in ATTACKS for form in attack.forms for policy in attack.policies
]


def assert_refused(case: Case, compression: Compression) -> None:
    attack, form, policy = case
    content = attack.build(form)
    report = inspected(compressed(content, compression), policy, limits=attack.limits, layer=attack.layer)
    errors = [finding for finding in report.findings if finding.severity is ArchiveSeverity.ERROR]

    assert not report.acceptable, (attack.name, form, policy)
    assert attack.code in {finding.code for finding in errors}
    assert all(finding.code in set(Reason) for finding in report.findings)
    assert all(finding.path.isprintable() and finding.detail.isprintable() for finding in report.findings)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_refused_for_its_reason(attack: Attack) -> None:
    for form, policy in product(attack.forms, attack.policies):
        assert_refused((attack, form, policy), "none")


def test_a_sample_of_the_attacks_is_refused_in_every_compression(rng: random.Random) -> None:
    for compression in COMPRESSED:
        for case in rng.sample(CASES, 200):
            assert_refused(case, compression)


@pytest.mark.exhaustive
@pytest.mark.parametrize("compression", COMPRESSED)
def test_every_attack_is_refused_in_every_compression(compression: Compression) -> None:
    for case in CASES:
        assert_refused(case, compression)


def test_no_two_attacks_have_one_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
