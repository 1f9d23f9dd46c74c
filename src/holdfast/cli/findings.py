"""Findings, as every command that checks something shows them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast.core.facts import Finding


def show_findings(settings: Settings, findings: Sequence[Finding]) -> int:
    """Show all of them, and say by the exit code whether there are any."""
    rows = [(finding.severity, finding.code, finding.subject, finding.message) for finding in findings]
    show(
        settings,
        {"findings": findings},
        lambda: print_table(("severity", "code", "subject", "message"), rows) if rows else None,
    )
    note(settings, f"{len(findings)} finding(s)" if findings else "nothing is wrong")
    return ExitCode.FINDINGS if findings else ExitCode.OK
