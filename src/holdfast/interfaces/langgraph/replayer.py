"""Replaying the recorded runs of a thread with the code of today, in memory."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.errors import GraphRecursionError
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command

from holdfast.backends.runtime.drivers import arun
from holdfast.codec.value_text import shorten
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.langgraph.recorded_thread import NOT_RECORDED, Attempt, RecordedCheckpoint, RecordedThread
from holdfast.interfaces.langgraph.recorder import RunRecorder, describe_error, digest_parameters, questions_of
from holdfast.interfaces.langgraph.replay_patch import patch_classes
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.recording.comparison import difference
from holdfast.recording.journal import (
    Call,
    DivergedRun,
    Divergence,
    DivergenceKind,
    EndOfRecording,
    ReplayJournal,
    TaskJournal,
    decode_items,
)
from holdfast.store import graph_forms
from holdfast.store.opener import aopen
from holdfast.store.replay.code_lookup import code_error, find_code
from holdfast.store.replay.isolation import isolate, place_of
from holdfast.store.replay.process import Host
from holdfast.store.replay.report import ReplayReport, build_report, divergence_here
from holdfast.store.saved_checkpoint import SavedCheckpoint
from holdfast.store.store_rows import aopen_rows

_AFTER_TASKS = "~"
"""Sorts after the names of tasks: the state of a step is compared after its tasks."""

_MAX_ERROR = 200
_MORE_STEPS = 10
_HINT = "Name it as package.module:graph"
_OWN_METADATA = frozenset(
    {"source", "step", "parents", "run_id", "writes", "thread_id", "checkpoint_ns", "checkpoint_id"}
)


_End: TypeAlias = Literal["stopped", "failed", "over"]
"""How the graph stopped: at its end or an interrupt; with an error that was recorded; or so that the replay is over."""


def _step_of(key: str) -> int:
    """Return the step of the graph that a task is in; of one in a subgraph, that of the node around it."""
    return int(key.partition(":")[0])


_answer: ContextVar[Call | None] = ContextVar("recorded call that answers the one that is made here", default=None)


class ReplayRecorder(RunRecorder):
    """Answers the calls of a run from its recording, and reports those that differ."""

    def __init__(self, thread: RecordedThread) -> None:
        super().__init__()
        self.thread = thread
        self.divergences: list[Divergence] = []
        self._journals: list[ReplayJournal] = []
        self.last_step = -2
        """The step after the last one of the recording."""
        self.may_go_on = False
        """Whether the recording ends in the middle of a run, such as with its process: further calls and steps are then
        no divergence. A thread that is finished, or waits for an answer, does not go on."""
        self._step = -1
        self._described: dict[str, Any] = {}
        self._count: dict[str, int] = {}
        self._answers: dict[UUID, Call] = {}
        self._errors: dict[str, str] = {}
        """The recorded errors of the tasks that run, or ran last, by their keys."""
        self.interrupts: dict[str, Sequence[Any]] = {}
        """The interrupts of tasks that wait for an answer, by their keys."""

    def make_journal(self, key: str, step: int, bases: Mapping[str, Sequence[Any]]) -> TaskJournal:  # noqa: ARG002
        """Return the journal of the recorded calls of a task."""
        self._step = max(self._step, step)
        number = self._count[key] = self._count.get(key, -1) + 1
        attempts = self.thread.attempts.get(key, [])
        recorded = attempts[number] if number < len(attempts) else Attempt([], ("", ""), (), ())
        self.interrupts.pop(key, None)

        def compare(kind: str, before: Any, given: Any) -> str | None:
            return self._compare(kind, before, given, self.thread.bases(recorded))

        is_last = self._is_at_end(key) and number >= len(attempts)
        journal = ReplayJournal(
            key, step, list(recorded.calls), compare, self.divergences.append, is_last, recorded.questions
        )
        self._errors[key] = recorded.error
        self._journals.append(journal)
        return journal

    def _is_at_end(self, key: str) -> bool:
        """Return whether a task is in the step in which a recording ends that may go on."""
        return self.may_go_on and _step_of(key) >= self.last_step

    def count_calls(self) -> int:
        """Return how many calls were answered."""
        return sum(len(each.recorded) - len(each.left) for each in self._journals)

    def _compare(self, kind: str, before: Any, given: Any, bases: Mapping[str, Sequence[Any]]) -> str | None:
        if kind != "model":
            return difference(before, given)
        found = difference(decode_items(before[0], bases), [item[0] for item in given[0]])
        if found is not None or before[1][0] == given[1][0]:
            return found
        known = self.thread.parameters.get(before[1][0])
        return difference(known, self._described.get(given[1][0])) or "the parameters of the model changed"

    def _describe_parameters(self, kwargs: Mapping[str, Any], thread: str) -> Any:  # noqa: ARG002
        digest, described = digest_parameters(kwargs)
        self._described[digest] = described
        return [digest, described]

    def begin_call(self, journal: TaskJournal, kind: str, name: str, given: Any, run_id: UUID) -> Call:
        """Find the recorded call."""
        if not isinstance(journal, ReplayJournal):
            raise DivergedRun(f"{kind} {name} is called outside of the run's tasks")
        journal.calls = []
        call = journal.match(kind, name, given(journal))
        self._answers[run_id] = call
        _answer.set(call)
        return call

    def end_call(self, journal: TaskJournal, call: Call, result: Any, error: BaseException | None) -> None:
        """Do nothing: it is recorded."""

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Report a node that ends the process: it must not end that of the replay."""
        found = self._runs.get(run_id)
        super().on_chain_error(error, run_id=run_id, **kwargs)
        if not isinstance(error, SystemExit) or found is None or found.journal is None:
            return
        if self._is_at_end(found.journal.key):
            raise EndOfRecording  # maybe so ended the recorded process
        what = f"the node raises {error!r} at {place_of(error)}, and did not in the recording"
        self.divergences.append(Divergence("error", what, found.journal.step, found.journal.key))
        raise DivergedRun(what)

    def find_call(self, run_manager: Any) -> Call:
        """Return the recorded call of a run of LangChain's."""
        call = _answer.get() if run_manager is None else self._answers.pop(run_manager.run_id, None)
        if call is None:
            what = "a model or a tool is called without the callbacks of the run, and cannot have been recorded"
            self.report_here("call", what)
            raise DivergedRun(what)
        return call

    def report_here(self, kind: DivergenceKind, what: str) -> None:
        """Report a divergence in the step that runs."""
        self.divergences.append(divergence_here(kind, what, self._step))

    def take(self, task_id: str, writes: Sequence[tuple[str, Any]]) -> None:
        """Report how a task ended otherwise than in the recording: with an error, with an interrupt, or without calls
        that it made. Of a subgraph it is reported by the task inside, and not by the node around it."""
        with self._lock:
            journal = self._tasks.pop(task_id, None)
        if not isinstance(journal, ReplayJournal):
            return
        marks = dict(writes)
        if INTERRUPT in marks:
            self.interrupts[journal.key] = marks[INTERRUPT]
        ended = isinstance(marks.get(ERROR), DivergedRun | EndOfRecording | asyncio.CancelledError)
        if ended or any(f"{each.task}|".startswith(f"{journal.key}|") for each in self.divergences):
            return
        known = len(self.divergences)
        self._compare_error(journal, marks.get(ERROR))
        journal.compare_questions(questions_of(marks))
        if len(self.divergences) == known:
            journal.close()

    def _compare_error(self, journal: ReplayJournal, error: Any) -> None:
        recorded, raised = self._errors.get(journal.key, ""), describe_error({ERROR: error})
        if recorded == raised:
            return
        before, now = shorten(recorded, _MAX_ERROR), shorten(raised, _MAX_ERROR)
        if not raised:
            if self._is_at_end(journal.key) and self._count[journal.key] + 1 >= len(self.thread.attempts[journal.key]):
                return  # the thread stopped with an error that the code does not make any more
            what = f"the node does not raise {before}, as in the recording"
        else:
            what = f"the node raises {now} at {place_of(error)}, and "
            what += f"raised {before} in the recording" if recorded else "did not in the recording"
        self.divergences.append(Divergence("error", what, journal.step, journal.key))

    def has_further_attempt(self) -> bool:
        """Return whether the recorded run stopped in this step, and a task was tried again, or the recording ends."""
        here = [journal for journal in self._journals if journal.step == self._step]
        attempts = self.thread.attempts
        return self._step >= self.last_step or any(
            self._count[journal.key] + 1 < len(attempts.get(journal.key, ())) for journal in here
        )

    def next_resume(self) -> dict[str, Any] | None:
        """Return the recorded answers to the interrupts that wait, by their ids; None if there are no more."""
        answers: dict[str, Any] = {}
        is_known = False
        for key, interrupts in self.interrupts.items():
            attempts, number = self.thread.attempts.get(key, []), self._count.get(key, 0)
            if number + 1 >= len(attempts):
                continue
            is_known = True
            before, after = attempts[number].resumed, attempts[number + 1].resumed
            if len(after) > len(before):
                answers[interrupts[0].id] = after[-1]
        return answers if is_known else None


def load_graph(name: str, found: Any, saver: HoldfastSaver) -> Pregel[Any, Any, Any, Any]:
    """Return a named graph that saves to a saver: of a compiled one, of a builder, or of a function of the saver."""
    try:
        built = found if isinstance(found, Pregel | StateGraph) or not callable(found) else found(saver)
        if isinstance(built, Pregel):
            return built.copy(update={"checkpointer": saver})
        if isinstance(built, StateGraph):
            return built.compile(checkpointer=saver)
    except HoldfastError:
        raise
    except (Exception, DivergedRun) as error:
        raise code_error(error, name, "graph", _HINT) from error
    raise InvalidError(
        f"expected a graph to replay, got {type(found).__name__}",
        hint="Name a compiled graph, a StateGraph, or a function that takes a checkpointer and returns one",
    )


class ThreadReplayer:
    """Replays a thread, or compares two, as the host orders."""

    def __init__(self, _: Host) -> None:
        self._runner = asyncio.Runner(loop_factory=ReplayLoop)

    def replay(self, order: dict[str, Any], recording: bytes) -> dict[str, Any]:
        """Execute an order, and return the report."""
        return self._runner.run(self._replay(order, recording)).to_json()

    async def _replay(self, order: dict[str, Any], recording: bytes) -> ReplayReport:
        size = order.get("size", len(recording))
        reader = HoldfastSaver(await aopen_rows(recording[:size]))
        thread_id = order["thread"] or await _only_thread(reader)
        if "size" in order:
            other = HoldfastSaver(await aopen_rows(recording[size:]))
            thread = await RecordedThread.load(reader._checkpoints, thread_id)
            other_id = order["other"] or await _only_thread(other)
            return await compare_threads(thread_id, thread, await RecordedThread.load(other._checkpoints, other_id))
        scratch = HoldfastSaver(await aopen("memory://"))
        recorders: list[ReplayRecorder] = []

        def blocked(what: str) -> None:
            if recorders:  # what a module does when it is imported is only refused
                recorders[0].report_here("effect", f"the code {what}")

        isolate(blocked)
        name = order["graph"]
        named = find_code(name, "graph", _HINT)  # first, so that the recording is read with its classes
        thread = await RecordedThread.load(reader._checkpoints, thread_id, order.get("until"))
        thread.change(order["changes"])
        replay = ThreadReplay(thread_id, thread, scratch)
        recorders.append(replay.recorder)
        patch_classes(replay.recorder.find_call)
        graph = load_graph(name, named, reader)
        latest: Any = {"configurable": {"thread_id": thread_id}}
        is_open = bool((await graph.aget_state(latest)).next) or thread.is_left_open(graph)
        if order["only_open"] and not is_open:
            return ReplayReport(thread_id, 0, 0, 0.0)
        return await replay.run(load_graph(name, named, scratch), order["since"], is_open=is_open)


async def _only_thread(reader: HoldfastSaver) -> str:
    """Return the thread of a recording that has one."""
    threads = {split_name(name)[0] for name in await arun(reader._checkpoints.threads())}
    if len(threads) != 1:
        raise InvalidError(f"the recording has {len(threads)} threads", hint="Name the one to replay: thread=…")
    return threads.pop()


class ThreadReplay:
    """The replay of the runs of a recorded thread."""

    def __init__(self, thread_id: str, thread: RecordedThread, scratch: HoldfastSaver) -> None:
        self._thread_id = thread_id
        self._thread = thread
        self.scratch = scratch
        self.recorder: ReplayRecorder = ReplayRecorder(thread)
        scratch.recorder = self.recorder
        self._steps = 0

    async def run(
        self, graph: Pregel[Any, Any, Any, Any], since: str | None = None, *, is_open: bool = False
    ) -> ReplayReport:
        """Replay all runs, or those from a checkpoint on, up to the first divergence."""
        start, recorder = time.monotonic(), self.recorder
        recorder.last_step = _step(self._thread.checkpoints[-1]) + 1
        recorder.may_go_on = self._thread.is_cut or (is_open and not self._thread.waits)
        (latest,) = await self._thread.load_run(self._thread.checkpoints[-1:])
        state: Any = latest.state
        only = self._thread.checkpoints[0].metadata.get("source") if len(self._thread.checkpoints) == 1 else "several"
        if since is None and only == "loop":
            self._thread.note = "only its end is there: it was pruned, or the run saved no steps (durability='exit')"
        elif not (self._thread.attempts or self._thread.note):
            self._thread.note = NOT_RECORDED
        if not self._thread.note:
            runs = self._thread.runs(since)
            for part in [part for run in runs for part in self._thread.recorded_parts(run)]:
                state = await self._replay_past_effects(graph, await self._thread.load_run(part))
                if any(each.kind != "effect" for each in recorder.divergences):
                    break
        return build_report(
            self._thread_id,
            recorder.divergences,
            steps=self._steps,
            calls=recorder.count_calls(),
            start=start,
            note=self._thread.note,
            state=state,
            is_open=is_open,
        )

    async def _replay_past_effects(self, graph: Pregel[Any, Any, Any, Any], run: list[SavedCheckpoint]) -> Any:
        """Replay a run. An effect of the code stops it: then from the recorded end of that step on, so that all of them
        are found, and not one for each replay."""
        while True:
            known = len(self.recorder.divergences)
            state = await self._replay_run(graph, run)
            new = self.recorder.divergences[known:]
            left = [each for each in run if new and _step(each) >= new[-1].step]
            if not 1 < len(left) < len(run) or any(each.kind != "effect" for each in new):
                return state
            run = left

    async def _replay_run(self, graph: Pregel[Any, Any, Any, Any], run: list[SavedCheckpoint]) -> Any:
        first, last = run[0], _step(run[-1])
        await self.scratch.adelete_thread(self._thread_id)
        config = self._config(first)
        seed = graph_forms.checkpoint_of(first)
        metadata: Any = first.metadata
        await self.scratch.aput(config, seed, metadata, seed["channel_versions"])
        resume: Any = None
        step, failures = _step(first), 0
        known = len(self.recorder.divergences)
        while True:
            limit: RunnableConfig = {**config, "recursion_limit": last - step + _MORE_STEPS}
            end = await self._run_once(graph, resume, limit)
            latest = await arun(self.scratch._checkpoints.get(thread_name(self._thread_id)))
            reached = step if latest is None else _step(latest)
            failures = failures + 1 if end == "failed" and reached <= step else 0
            if end == "over" or len(self.recorder.divergences) > known:
                break
            answers = self.recorder.next_resume()
            if answers is None and reached >= last:
                break
            is_stuck = answers is None and reached <= step and resume is None
            if is_stuck and not 0 < failures < self._count_attempts(reached + 1):
                what = f"the run ends after step {reached}, and the recorded one went on to step {last}"
                self._report("steps", what, reached + 1)
                break
            resume, step = Command(resume=answers) if answers else None, reached
        self._compare(run, await self._checkpoints())
        return first.state if latest is None else latest.state

    def _count_attempts(self, step: int) -> int:
        """Return how often a step was tried in the recorded run."""
        tasks = [attempts for key, attempts in self._thread.attempts.items() if key.startswith(f"{step}:")]
        return max(map(len, tasks), default=0)

    async def _run_once(self, graph: Pregel[Any, Any, Any, Any], resume: Any, config: RunnableConfig) -> _End:
        """Run the graph until it stops, and return how it did."""
        run = asyncio.ensure_future(graph.ainvoke(resume, config))
        loop = asyncio.get_running_loop()
        is_cancelled = False

        def cancel(waiting: Sequence[str]) -> None:
            nonlocal is_cancelled
            is_cancelled = self.recorder.has_further_attempt()
            if not is_cancelled:
                self.recorder.report_here("call", f"nobody cancels {waiting[0]}, and it was cancelled in the recording")
            run.cancel()

        if isinstance(loop, ReplayLoop):
            loop.on_idle, loop.goes_on = cancel, True
        try:
            await run
        except (DivergedRun, EndOfRecording):
            return "over"
        except asyncio.CancelledError:
            return "failed" if is_cancelled else "over"
        except GraphRecursionError:
            self._report("steps", "the run makes more steps than the recorded one", self.recorder.last_step)
            return "over"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may be what was recorded
            return self._compare_error(error)
        finally:
            if isinstance(loop, ReplayLoop):
                loop.goes_on = False
        return "stopped"

    def _errors(self) -> list[str]:
        """Return the recorded errors of tasks."""
        return [
            str(write.value) for each in self._thread.checkpoints for write in each.writes if write.channel == ERROR
        ]

    def _compare_error(self, error: BaseException) -> _End:
        """Compare an error that ended the run with that of the recording. Those of tasks were compared before."""
        recorded = self._errors()
        if self.recorder.divergences:
            return "over"
        if repr(error) in recorded:
            return "failed"
        found = difference(recorded[-1] if recorded else None, repr(error)) or ""
        last = self._thread.checkpoints[-1]
        self._report("error", "the run fails, and the recorded one did not so", _step(last) + 1, found)
        return "over"

    def _report(self, kind: Any, what: str, step: int, diff: str = "") -> None:
        self.recorder.divergences.append(Divergence(kind, what, step, _AFTER_TASKS, 0, diff))

    async def _checkpoints(self) -> dict[int, SavedCheckpoint]:
        """Return the checkpoints of the replay by their steps."""
        pages = await arun(self.scratch._checkpoints.list_checkpoints([thread_name(self._thread_id)]))
        return {_step(each): each for page in [page async for page in pages] for each in reversed(page)}

    def _compare(self, run: list[SavedCheckpoint], replayed: Mapping[int, SavedCheckpoint]) -> None:
        """Compare the states of all steps that were replayed."""
        self._steps += sum(_step(each) in replayed for each in run[1:])
        for each in run[1:]:
            other = replayed.get(_step(each))
            if other is None:
                return
            found = difference(each.state, other.state)
            if found is not None:
                self._report("output", "the state after this step differs", _step(each), found)
                return
        further = [step for step in replayed if step > _step(run[-1])]
        if further and (run[-1].id != self._thread.checkpoints[-1].id or not self.recorder.may_go_on):
            self._report("steps", "the run makes more steps than the recorded one", min(further))

    def _config(self, first: SavedCheckpoint) -> RunnableConfig:
        given = {
            name: value
            for name, value in first.metadata.items()
            if name not in _OWN_METADATA and not name.startswith(("langgraph_", "__")) and isinstance(value, str | int)
        }
        configurable = {**given, **graph_forms.config_of(self._thread_id, "", "")["configurable"]}
        configurable.pop("checkpoint_id")
        return {"configurable": configurable, "callbacks": [self.recorder]}


async def compare_threads(thread_id: str, before: RecordedThread, after: RecordedThread) -> ReplayReport:
    """Compare two recordings: their states step by step, and the calls of their tasks."""
    start, found = time.monotonic(), list[Divergence]()
    others = {_step(each): each for each in after.checkpoints}
    for each in before.checkpoints:
        other = others.pop(_step(each), None)
        if other is None:
            found.append(Divergence("steps", "the other run has no such step", _step(each)))
            continue
        (state,), (other_state,) = await before.load_run([each]), await after.load_run([other])
        if (text := difference(state.state, other_state.state)) is not None:
            found.append(Divergence("output", "the state after this step differs", _step(each), _AFTER_TASKS, 0, text))
    found += [Divergence("steps", "only the other run has this step", step) for step in others]
    calls = 0
    for key in {*before.attempts, *after.attempts}:
        a, b = await before.resolve(key), await after.resolve(key)
        calls += len(a)
        step = int(key.rpartition("|")[2].partition(":")[0])
        for number in range(max(len(a), len(b))):
            text = difference(a[number] if number < len(a) else None, b[number] if number < len(b) else None)
            if text is not None:
                found.append(Divergence("call", "the calls differ", step, key, number, text))
                break
        asked, other_asked = ([each.questions for each in of.attempts.get(key, ())] for of in (before, after))
        if (text := difference(asked, other_asked)) is not None:
            found.append(Divergence("interrupt", "the interrupts differ", step, key, len(a), text))
    note = before.note or after.note
    return build_report(thread_id, found, steps=len(before.checkpoints), calls=calls, start=start, note=note)


def _step(checkpoint: SavedCheckpoint | RecordedCheckpoint) -> int:
    return int(checkpoint.metadata.get("step", 0))


_GRACE = 0.1
"""Seconds in which nothing happens before the clock goes on: threads may be at work."""

_MAX_IDLE = 20
"""How many such times without a timer it takes until nobody is expected to cancel."""


class ReplayLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock skips the time that would only be waited for a cancellation."""

    def __init__(self) -> None:
        self._skipped = 0.0
        self._idle = 0
        self.waiting: dict[asyncio.Future[None], str] = {}
        """The calls that wait to be cancelled."""
        self.on_idle: Callable[[list[str]], None] = lambda _: None
        """Called with those that nobody cancels."""
        self.goes_on = False
        """Whether a `SystemExit` is left to whoever awaits it, and does not end the loop: while a graph runs."""
        super().__init__(_SkippingSelector(self))

    def run_forever(self) -> None:
        """Run until the loop is stopped."""
        while True:
            try:
                return super().run_forever()
            except SystemExit:
                if not self.goes_on:
                    raise

    def time(self) -> float:
        """Return the time of the loop."""
        return super().time() + self._skipped

    async def wait_for_cancellation(self, call: str) -> None:
        """Wait until the caller is cancelled."""
        future = self.create_future()
        self.waiting[future] = call
        try:
            await future
        finally:
            self.waiting.pop(future, None)
            self._idle = 0

    def skip(self, seconds: float | None) -> None:
        """Go on to the next timer, if there is one."""
        self._idle = self._idle + 1 if seconds is None else 0
        if seconds is not None:
            self._skipped += seconds
        elif self._idle == _MAX_IDLE:
            self.on_idle(list(self.waiting.values()))


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, loop: ReplayLoop) -> None:
        super().__init__()
        self._replay_loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if not self._replay_loop.waiting or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        found = super().select(_GRACE if timeout is None else min(timeout, _GRACE))
        if not found:
            self._replay_loop.skip(timeout)
        return found
