"""Scheduled jobs: `store.jobs`, the runner, and types of jobs for programs to add."""

from __future__ import annotations

from typing import Protocol

from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.runner import AsyncJobRunner, JobRunner
from holdfast.maintenance.jobs.types import JobContextBase, JobResult, JobType
from holdfast.store.store import Store

__all__ = ["AsyncJobRunner", "JobContext", "JobResult", "JobRunner", "JobType", "JobTypes", "Jobs"]


class JobContext(JobContextBase, Protocol):
    """The argument of a job's function."""

    @property
    def store(self) -> Store:
        """The store, for its tenant."""
