"""Peers are measured at versions that are pinned, and described where the figures are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = sorted(place for place in (ROOT / "benchmarks" / "peers").iterdir() if (place / "requirements.txt").exists())
PAGE = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8")


def test_there_are_peers() -> None:
    assert len(PEERS) == 6


def requirements(peer: Path) -> list[str]:
    return [line for line in (peer / "requirements.txt").read_text().splitlines() if not line.startswith("#")]


def test_every_peer_is_pinned_and_has_a_program_and_a_line_in_the_page() -> None:
    lines = {peer: requirements(peer) for peer in PEERS}
    pinned = re.compile(r"[\w-]+(\[[\w,]+\])?==[\w.]+")
    in_the_page = {name.lower() for name in re.findall(r"^\| ([\w-]+) \|", PAGE, re.MULTILINE)}

    assert [line for each in lines.values() for line in each if not pinned.fullmatch(line)] == []
    # The first line is the peer itself: its version stands in the report.
    assert [peer.name for peer in PEERS if not lines[peer][0].startswith(peer.name)] == []
    assert [peer.name for peer in PEERS if not (peer / "program.py").exists()] == []
    assert [peer.name for peer in PEERS if peer.name.lower() not in in_the_page] == []


def test_no_code_of_a_peer_is_imported_outside_of_its_program() -> None:
    names = "|".join(["absurd_sdk", "absurdctl", *[peer.name for peer in PEERS]])
    guilty = [
        path
        for path in (ROOT / "benchmarks").rglob("*.py")
        if path.parent not in PEERS and re.search(rf"^\s*(?:import|from) (?:{names})\b", path.read_text(), re.MULTILINE)
    ]

    assert guilty == []


def test_the_chart_of_the_readme_is_that_of_the_results() -> None:
    program = (
        "import sys, msgspec; from measuring.chart import chart; from measuring.tables import Report; "
        "print(chart(msgspec.json.decode(open('results.json', 'rb').read(), type=Report).figures), end='')"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    )

    assert made.stdout == (ROOT / "docs" / "images" / "figures.svg").read_text(encoding="utf-8")
