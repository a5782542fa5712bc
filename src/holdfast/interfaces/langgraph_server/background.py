"""What is done for LangGraph's clients in the process of the server while nobody calls: their runs, runs by the clock,
webhooks of runs that are over, and the deletion of threads whose time is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

from holdfast.agents.runs.steps import Workflow, current_steps, workflow
from holdfast.agents.runs.worker import CONCURRENCY
from holdfast.errors import InvalidError, NotFoundError, TransientError
from holdfast.interfaces.http.service import Caller, Service, ServiceOptions
from holdfast.interfaces.langgraph.client_runs import ClientRun, to_json
from holdfast.interfaces.langgraph_server.graphs import ServedGraphs
from holdfast.interfaces.langgraph_server.routes import ClientCall
from holdfast.interfaces.langgraph_server.runs import describe_run, final
from holdfast.interfaces.langgraph_server.webhooks import WEBHOOK, post
from holdfast.maintenance.jobs.builtin import CLIENT_RUN, DELETE_STALE, JobTypes
from holdfast.maintenance.jobs.runner import JobRunner
from holdfast.store.store import Store

_TIMERS = "1m"
"""How often the runner looks for timers of agents, which are left to others."""


class UndeliveredError(Exception):
    """A webhook did not take what it was sent. It is called again."""


@contextmanager
def client_work(
    store: Store, graphs: Mapping[str, Any], private_webhooks: bool = False, concurrency: int = CONCURRENCY
) -> Iterator[None]:
    """Do runs of some graphs, and whatever else clients have asked for, in threads of this process."""
    deliver = webhook_workflow(store, graphs, private=private_webhooks)
    with ExitStack() as stack:
        stack.enter_context(store.worker(**graphs, concurrency=concurrency))
        stack.enter_context(store.worker(deliver))
        stack.enter_context(JobRunner(store, JobTypes(CLIENT_RUN, DELETE_STALE), timers_every=_TIMERS))
        yield


def webhook_workflow(store: Store, graphs: Mapping[str, Any], *, private: bool) -> Workflow[Any, str]:
    """Return the workflow that calls the webhook of a run, which its end has submitted. A worker repeats it until the
    webhook has taken what it was sent."""
    service, served = Service(store, ServiceOptions(write=True)), ServedGraphs(graphs)

    @workflow(name=WEBHOOK)
    def call_webhook(run: str) -> str:
        steps = current_steps.get()
        if not steps:
            raise InvalidError("webhooks are called by workers")
        own = steps.held.stored
        call = ClientCall(service, Caller(own.submitter), served)  # it sends what the submitter may read
        try:
            ended = call.store.runs.get(run)
        except NotFoundError:
            return "the run is not there any more"
        asked = ClientRun.of(ended.input)
        if asked is None or not asked.webhook:
            return "the run has no webhook"
        values: Any = None
        problem: Any = None
        try:
            values = final(call, ended)
        except InvalidError as error:  # told: an earlier run has left an input that the graph refuses
            problem = {"error": error.code, "message": str(error)}
        if ended.state == "failed":
            values, problem = None, values["__error__"]
        body = {
            **describe_run(ended),
            "run_started_at": None if ended.started is None else ended.started.isoformat(),
            "run_ended_at": None if ended.ended is None else ended.ended.isoformat(),
            "webhook_sent_at": datetime.now(UTC).isoformat(),
            "values": values,
            "error": problem,
        }
        try:
            post(asked.webhook, to_json(body), own.id, private=private)
        except TransientError as error:
            raise UndeliveredError(str(error)) from None
        return f"called for run {run}"

    return call_webhook
