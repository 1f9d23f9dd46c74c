"""Holdfast: crash-safe state machines for Python."""

from holdfast.app import Engine
from holdfast.client import Client
from holdfast.core.flow import Flow
from holdfast.core.outcomes import Abort, Handoff, Rewind, Unrecoverable, WaitFor
from holdfast.core.pipeline import Pipeline, PipelineResponse, PipelineView, StageResult
from holdfast.core.retry import RetryPolicy, exponential, fixed, hours, minutes, never, seconds
from holdfast.core.run import Run, Transaction
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.engine.worker import Worker, WorkerSettings
from holdfast.errors import HoldfastError

__version__ = "0.1.0"

__all__ = [
    "Abort",
    "Client",
    "Engine",
    "ExecutionStatus",
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
