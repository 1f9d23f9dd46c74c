"""Alerts and the dashboard: metrics that exist, rules that fire in Prometheus, a dashboard that Grafana knows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "docs" / "how-to" / "holdfast-alerts.yaml"
DASHBOARD = ROOT / "docs" / "how-to" / "holdfast-dashboard.json"
PAGE = ROOT / "docs" / "how-to" / "monitor.md"

METRIC = re.compile(r"^\| `(holdfast_\w+)` \| (\w+) \| ([^|]+) \|", re.MULTILINE)
USED = re.compile(r"(holdfast_\w+)(?:\{([^}]*)\})?")


def documented() -> dict[str, set[str]]:
    """Every series that there is, with its labels."""
    found: dict[str, set[str]] = {}
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for name, kind, labels in METRIC.findall(text):
        names = set() if labels.strip() == "none" else set(labels.replace(" ", "").split(","))
        for series in [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]:
            found[series] = names | {"le"} if series.endswith("_bucket") else names
    return found


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    of_panels = [target["expr"] for panel in panels for target in panel["targets"]]
    text = ALERTS.read_text(encoding="utf-8").replace(">-\n", "")
    return of_panels + re.findall(r"expr: (.*?)\n        (?:for|labels):", text, re.DOTALL)


def test_every_metric_and_label_that_is_asked_for_exists() -> None:
    known, asked = documented(), expressions()
    series = [one for text in asked for one in USED.findall(text)]
    unknown = [name for name, _ in series if name not in known]
    wrong = [
        (name, label)
        for name, given in series
        for label in re.findall(r"(\w+)\s*[=!]", given)
        if label not in known.get(name, ())
    ]
    grouped = {
        (text, label.strip())
        for text in asked
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", text)
        for label in labels.split(",")
        if label.strip() and not any(label.strip() in known.get(name, ()) for name, _ in USED.findall(text))
    }

    assert len(series) > 30
    assert (unknown, wrong) == ([], [])
    assert {label for _, label in grouped} <= {"instance"}


def test_every_alert_says_what_to_do() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8")))
    told = set(re.findall(r"^\| `(Holdfast\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))

    assert alerts == told


# --- Prometheus judges the rules itself ----------------------------------------------------------------------


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program, "promtool is needed: `make tools` installs Debian's package prometheus"
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def test_prometheus_takes_the_rules() -> None:
    checked = promtool("check", "rules", str(ALERTS))

    assert checked.returncode == 0, checked.stderr
    assert "10 rules found" in checked.stdout


FIRING: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "HoldfastStoreDown": ("10m", {}, {"holdfast_store_up": "0x20"}),
    "HoldfastGone": ("10m", {}, {}),
    "HoldfastNoWorker": ("10m", {}, {"holdfast_workers": "0x20", 'holdfast_queue_pending{queue="q"}': "3x20"}),
    "HoldfastQueueWaits": ("10m", {"queue": "q"}, {'holdfast_queue_oldest_seconds{queue="q"}': "1000x20"}),
    "HoldfastQueuePaused": (
        "70m",
        {"queue": "q"},
        {'holdfast_queue_paused{queue="q"}': "1x90", 'holdfast_queue_pending{queue="q"}': "2x90"},
    ),
    "HoldfastQuarantined": ("10m", {"flow": "f"}, {'holdfast_jobs{flow="f",state="quarantined"}': "2x20"}),
    "HoldfastFailures": (
        "40m",
        {"flow": "f"},
        {
            'holdfast_transitions_total{flow="f",to="failed"}': "0+1x60",
            'holdfast_transitions_total{flow="f",to="succeeded"}': "0+9x60",
        },
    ),
    "HoldfastWorkersDie": ("20m", {"flow": "f"}, {'holdfast_recovered_total{flow="f"}': "0+1x30"}),
    "HoldfastFinding": ("20m", {"code": "c"}, {'holdfast_findings_total{code="c"}': "0 0 1x30"}),
    "HoldfastWorkerFaults": ("14m", {"part": "p"}, {'holdfast_worker_faults_total{part="p"}': "0 0 1 1x30"}),
}
"""When it fires, with which labels, of which series."""
WELL = {
    "holdfast_store_up": "1x90",
    "holdfast_workers": "2x90",
    'holdfast_queue_pending{queue="q"}': "0x90",
    'holdfast_queue_oldest_seconds{queue="q"}': "1x90",
    'holdfast_queue_oldest_seconds{queue="paused"}': "5000x90",
    'holdfast_queue_paused{queue="paused"}': "1x90",
    'holdfast_jobs{flow="f",state="quarantined"}': "0x90",
    'holdfast_transitions_total{flow="f",to="failed"}': "0+1x90",
    'holdfast_transitions_total{flow="f",to="succeeded"}': "0+99x90",
    'holdfast_recovered_total{flow="f"}': "5x90",
    'holdfast_findings_total{code="c"}': "5x90",
    'holdfast_worker_faults_total{part="p"}': "5x90",
}


def test_each_alert_fires_when_it_should_and_none_when_all_is_well(tmp_path: Path) -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8"))
    tests = [_trial(name, at, labels, series) for name, (at, labels, series) in FIRING.items()]
    tests += [_trial(name, "85m", None, WELL) for name in alerts]
    file = tmp_path / "trials.yaml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    judged = promtool("test", "rules", str(file))

    assert FIRING.keys() == set(alerts)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def _trial(name: str, at: str, labels: dict[str, str] | None, series: dict[str, str]) -> dict[str, Any]:
    found = re.search(
        rf"- alert: {name}\n.*?severity: (\w+)\}}\n(.*?)(?=\n      - alert|\Z)", ALERTS.read_text(), re.DOTALL
    )
    assert found
    firing = {"alertname": name, "alertstate": "firing", "severity": found[1], **(labels or {})}
    text = ", ".join(f'{label}="{value}"' for label, value in firing.items())
    expected = [{"labels": f"ALERTS{{{text}}}", "value": 1}] if labels is not None else []
    asked = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
    return {
        "interval": "1m",
        "name": f"{name} {'fires' if expected else 'is silent'}",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [{"eval_time": at, "expr": asked, "exp_samples": expected}],
    }


# --- Grafana's own model of a dashboard ------------------------------------------------------------------------


def lost(given: Any, known: Any, place: str = "") -> list[str]:
    """What the model has not taken over: a field that Grafana does not know, or that is of another kind."""
    if isinstance(given, dict):
        there = known if isinstance(known, dict) else {}
        return [each for name in given for each in lost(given[name], there.get(name, Ellipsis), f"{place}/{name}")]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        pairs = zip(given, known, strict=True)
        return [each for number, (one, other) in enumerate(pairs) for each in lost(one, other, f"{place}/{number}")]
    return [] if given == known else [place]


def test_the_dashboard_is_one_as_grafana_defines_it() -> None:
    given = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    known = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
    planted = {**given, "panels": [{**given["panels"][0], "colour": "red"}]}
    seen = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(planted)))

    assert lost(given, known) == []
    assert lost(planted, seen) == ["/panels/0/colour"]
    assert len({panel["id"] for panel in given["panels"]}) == len(given["panels"])


def test_panels_do_not_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
