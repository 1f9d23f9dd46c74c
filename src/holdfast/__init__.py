"""Holdfast: crash-safe state machines for Python.

The names below are imported when they are first used, so that `import holdfast`, and with it the command line, costs
next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Engine
    from holdfast.client import Client
    from holdfast.core.flow import Flow
    from holdfast.core.invariants import Finding, Severity
    from holdfast.core.outcomes import Abort, Handoff, Rewind, Unrecoverable, WaitFor
    from holdfast.core.pipeline import Pipeline, PipelineResponse, PipelineView, StageResult
    from holdfast.core.retry import RetryPolicy, exponential, fixed, hours, minutes, never, seconds
    from holdfast.core.run import Run, Transaction
    from holdfast.core.states import ExecutionStatus, JobState
    from holdfast.engine.settings import WorkerSettings
    from holdfast.engine.worker import Worker
    from holdfast.errors import HoldfastError

__version__ = "0.1.0"

__all__ = [
    "Abort",
    "Client",
    "Engine",
    "ExecutionStatus",
    "Finding",
    "Flow",
    "Handoff",
    "HoldfastError",
    "JobState",
    "Pipeline",
    "PipelineResponse",
    "PipelineView",
    "RetryPolicy",
    "Rewind",
    "Run",
    "Severity",
    "StageResult",
    "Transaction",
    "Unrecoverable",
    "WaitFor",
    "Worker",
    "WorkerSettings",
    "exponential",
    "fixed",
    "hours",
    "minutes",
    "never",
    "seconds",
]

_HOME = {
    "Abort": "holdfast.core.outcomes",
    "Client": "holdfast.client",
    "Engine": "holdfast.app",
    "ExecutionStatus": "holdfast.core.states",
    "Finding": "holdfast.core.invariants",
    "Flow": "holdfast.core.flow",
    "Handoff": "holdfast.core.outcomes",
    "HoldfastError": "holdfast.errors",
    "JobState": "holdfast.core.states",
    "Pipeline": "holdfast.core.pipeline",
    "PipelineResponse": "holdfast.core.pipeline",
    "PipelineView": "holdfast.core.pipeline",
    "RetryPolicy": "holdfast.core.retry",
    "Rewind": "holdfast.core.outcomes",
    "Run": "holdfast.core.run",
    "Severity": "holdfast.core.invariants",
    "StageResult": "holdfast.core.pipeline",
    "Transaction": "holdfast.core.run",
    "Unrecoverable": "holdfast.core.outcomes",
    "WaitFor": "holdfast.core.outcomes",
    "Worker": "holdfast.engine.worker",
    "WorkerSettings": "holdfast.engine.settings",
    "exponential": "holdfast.core.retry",
    "fixed": "holdfast.core.retry",
    "hours": "holdfast.core.retry",
    "minutes": "holdfast.core.retry",
    "never": "holdfast.core.retry",
    "seconds": "holdfast.core.retry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
