"""Holdfast: crash-safe state machines for Python.

The names below are imported when they are first used, so that `import holdfast`, and with it the command line, costs
next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.facts import Finding, Severity
    from holdfast.core.flow import Flow, Pipeline, PipelineResponse, PipelineView, StageResult
    from holdfast.core.records import ErrorRecord, JobRecord, JobResult
    from holdfast.core.retry import RetryPolicy, delays, exponential, fixed, hours, minutes, never, seconds
    from holdfast.core.states import ExecutionStatus, JobState
    from holdfast.core.step import Abort, Handoff, Rewind, Run, Transaction, Unrecoverable, WaitFor
    from holdfast.engine import Engine
    from holdfast.errors import (
        HoldfastError,
        JobFailed,
        JobNotFoundError,
        JobPrunedError,
        StepStopped,
        StepTimeout,
        WaitTimeout,
    )
    from holdfast.store.commands import Submitted
    from holdfast.tables import Tables
    from holdfast.worker.leases import WorkerSettings
    from holdfast.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Abort",
    "Client",
    "Engine",
    "ErrorRecord",
    "ExecutionStatus",
    "Finding",
    "Flow",
    "Handoff",
    "HoldfastError",
    "JobFailed",
    "JobNotFoundError",
    "JobPrunedError",
    "JobRecord",
    "JobResult",
    "JobState",
    "Pipeline",
    "PipelineResponse",
    "PipelineView",
    "RetryPolicy",
    "Rewind",
    "Run",
    "Severity",
    "StageResult",
    "StepStopped",
    "StepTimeout",
    "Submitted",
    "Tables",
    "Transaction",
    "Unrecoverable",
    "WaitFor",
    "WaitTimeout",
    "Worker",
    "WorkerSettings",
    "delays",
    "exponential",
    "fixed",
    "hours",
    "minutes",
    "never",
    "seconds",
]

_HOME = {
    "Abort": "holdfast.core.step",
    "Client": "holdfast.client",
    "Engine": "holdfast.engine",
    "ErrorRecord": "holdfast.core.records",
    "ExecutionStatus": "holdfast.core.states",
    "Finding": "holdfast.core.facts",
    "Flow": "holdfast.core.flow",
    "Handoff": "holdfast.core.step",
    "HoldfastError": "holdfast.errors",
    "JobFailed": "holdfast.errors",
    "JobNotFoundError": "holdfast.errors",
    "JobPrunedError": "holdfast.errors",
    "JobRecord": "holdfast.core.records",
    "JobResult": "holdfast.core.records",
    "JobState": "holdfast.core.states",
    "Pipeline": "holdfast.core.flow",
    "PipelineResponse": "holdfast.core.flow",
    "PipelineView": "holdfast.core.flow",
    "RetryPolicy": "holdfast.core.retry",
    "Rewind": "holdfast.core.step",
    "Run": "holdfast.core.step",
    "Severity": "holdfast.core.facts",
    "StageResult": "holdfast.core.flow",
    "StepStopped": "holdfast.errors",
    "StepTimeout": "holdfast.errors",
    "Submitted": "holdfast.store.commands",
    "Tables": "holdfast.tables",
    "Transaction": "holdfast.core.step",
    "Unrecoverable": "holdfast.core.step",
    "WaitFor": "holdfast.core.step",
    "WaitTimeout": "holdfast.errors",
    "Worker": "holdfast.worker.worker",
    "WorkerSettings": "holdfast.worker.leases",
    "delays": "holdfast.core.retry",
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
