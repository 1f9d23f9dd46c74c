"""What is to be seen of a store: the one reader of the page, the API and the terminal."""

from holdfast.store.change_feed import Change
from holdfast.store.job_lists import JobFilter
from holdfast.views.records import (
    BoundedCount,
    Edge,
    ExecutionView,
    FailureKind,
    FlowView,
    JobPage,
    JobRow,
    JobView,
    OlderDefinition,
    Overview,
    QueueView,
    SlowView,
    StepStatistics,
    StepView,
    WaysOut,
    WorkerView,
)
from holdfast.views.views import COUNT_CAP, PAGE_LIMIT, Views

__all__ = [
    "COUNT_CAP",
    "PAGE_LIMIT",
    "BoundedCount",
    "Change",
    "Edge",
    "ExecutionView",
    "FailureKind",
    "FlowView",
    "JobFilter",
    "JobPage",
    "JobRow",
    "JobView",
    "OlderDefinition",
    "Overview",
    "QueueView",
    "SlowView",
    "StepStatistics",
    "StepView",
    "Views",
    "WaysOut",
    "WorkerView",
]
