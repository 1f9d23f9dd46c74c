"""Every known attack is refused, in every form and compression, for its own reason."""

from __future__ import annotations

import pytest

from holdfast_images.archive.entry import Policy, Severity
from holdfast_images.archive.reasons import Reason
from tests.hostile.corpus import ATTACKS, Attack
from tests.support.images.archives import COMPRESSIONS, Compression, Form, compressed, inspected

CASES = [
    pytest.param(attack, form, policy, id=f"{attack.name}-{form}-{policy}")
    for attack in ATTACKS
    for form in attack.forms
    for policy in attack.policies
]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("attack, form, policy", CASES)
def test_an_attack_is_refused_for_its_reason(
    attack: Attack, form: Form, policy: Policy, compression: Compression
) -> None:
    content = attack.build(form)
    report = inspected(compressed(content, compression), policy, limits=attack.limits, layer=attack.layer)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]

    assert not report.acceptable
    assert attack.code in {finding.code for finding in errors}
    assert all(finding.code in set(Reason) for finding in report.findings)
    assert all(finding.path.isprintable() and finding.detail.isprintable() for finding in report.findings)


def test_no_two_attacks_have_one_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
