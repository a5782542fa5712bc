"""Several agents in one graph: supervisors, hand-offs, teams, plans."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.interfaces.langgraph.scenarios.chat_models import ScriptedModel, calls, scripted
from tests.interfaces.langgraph.sessions import Session, on, program


class TeamState(MessagesState, total=False):
    following: str
    reports: Annotated[dict[str, str], operator.or_]


def worker(name: str) -> Any:
    """A member of a team: it answers, and hands back to the supervisor."""

    def node(state: TeamState) -> Command[Any]:
        said = f"{name} on {state['messages'][0].text}"
        update = {"messages": [HumanMessage(said, name=name)], "reports": {name: said}}
        return Command(goto="supervisor", update=update)

    return node


def supervisor(*team: str) -> Any:
    """Sends each member of a team to work once, and then ends."""

    def node(state: TeamState) -> Command[Any]:
        missing = [name for name in team if name not in state.get("reports", {})]
        following = missing[0] if missing else END
        return Command(goto=following, update={"following": following})

    return node, {"destinations": (*team, END)}


@program
async def supervisor_with_workers(s: Session) -> None:
    nodes = {"supervisor": supervisor("search", "code"), "search": worker("search"), "code": worker("code")}
    graph = s.graph(TeamState, nodes, ((START, "supervisor"),))
    await s.run("asked", graph, {"messages": [("user", "kelp")]}, on("t"))
    await s.run("asked again", graph, {"messages": [("user", "more")], "reports": {"code": "old"}}, on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def teams_of_teams(s: Session) -> None:
    def team(*names: str) -> Any:
        nodes = {"supervisor": supervisor(*names), **{name: worker(name) for name in names}}
        return s.graph(TeamState, nodes, ((START, "supervisor"),), checkpointer=None)

    def call(name: str, inner: Any) -> Any:
        async def acall(state: TeamState) -> Any:
            return hand_back(name, await inner.ainvoke({"messages": state["messages"]}))

        return acall if s.asynchronous else lambda state: hand_back(name, inner.invoke({"messages": state["messages"]}))

    def hand_back(name: str, result: dict[str, Any]) -> Command[Any]:
        update = {"messages": result["messages"][-1:], "reports": {name: " / ".join(result["reports"].values())}}
        return Command(goto="supervisor", update=update)

    nodes = {
        "supervisor": supervisor("research", "writing"),
        "research": call("research", team("search", "scrape")),
        "writing": call("writing", team("outline", "draft")),
    }
    graph = s.graph(TeamState, nodes, ((START, "supervisor"),))
    await s.run("asked", graph, {"messages": [("user", "kelp")]}, on("t"))
    await s.audit(graph, "t", ask=False)


class SwarmState(MessagesState, total=False):
    active: str


def handoff(agent: str) -> Any:
    """A tool that hands the conversation to another agent of the parent graph."""

    @tool(f"transfer_to_{agent}")
    def transfer(
        state: Annotated[dict[str, Any], InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        """Hand over."""
        done = ToolMessage(f"now {agent}", tool_call_id=tool_call_id, name=f"transfer_to_{agent}")
        update = {"messages": [*state["messages"], done], "active": agent}
        return Command(goto=agent, graph=Command.PARENT, update=update)

    return transfer


@program
async def swarm_with_handoffs(s: Session) -> None:
    def answers(name: str, other: str) -> ScriptedModel:
        def answer(messages: list[Any]) -> AIMessage:
            said = next(each for each in reversed(messages) if each.type == "human").text
            if other in said and messages[-1].type == "human":
                return calls((f"transfer_to_{other}", {}), number=len(messages))
            return AIMessage(f"{name} heard {len(messages)}")

        return ScriptedModel(answer=answer)

    agents = {
        name: create_agent(answers(name, other), [handoff(other)], name=name)
        for name, other in (("sales", "support"), ("support", "sales"))
    }
    route = lambda state: state.get("active", "sales")  # noqa: E731
    graph = s.graph(SwarmState, agents, branches={START: route})
    await s.run("sales answers", graph, {"messages": [("user", "hello")]}, on("t"))
    await s.run("to support", graph, {"messages": [("user", "support please")]}, on("t"))
    await s.run("support answers", graph, {"messages": [("user", "it is broken")]}, on("t"))
    await s.run("back", graph, {"messages": [("user", "sales again")]}, on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def agents_as_tools(s: Session) -> None:
    mathematician: Any = create_agent(scripted("forty-two"), [], name="mathematician")

    @tool
    def ask_mathematician(question: str) -> str:
        """Ask a mathematician."""
        return str(mathematician.invoke({"messages": [("user", question)]})["messages"][-1].content)

    @tool
    async def aask_mathematician(question: str) -> str:
        """Ask a mathematician."""
        found = await mathematician.ainvoke({"messages": [("user", question)]})
        return str(found["messages"][-1].content)

    ask = aask_mathematician if s.asynchronous else ask_mathematician
    model = scripted(calls((ask.name, {"question": "6 x 7"})), "he says so")
    graph = create_agent(model, [ask], system_prompt="Delegate.", checkpointer=s.saver)
    await s.run("asked", graph, {"messages": [("user", "6 x 7?")]}, on("t"))
    await s.run("asked again", graph, {"messages": [("user", "and 7 x 6?")]}, on("t"))
    await s.audit(graph, "t", ask=False)


class PlanStep(BaseModel):
    title: str
    done: bool = False
    result: str | None = None


class PlanState(TypedDict, total=False):
    goal: str
    plan: list[PlanStep]
    past: Annotated[list[tuple[str, str]], operator.add]
    answer: str


@program
async def plan_and_execute(s: Session) -> None:
    def plan(state: PlanState) -> PlanState:
        return {"plan": [PlanStep(title=f"{word} the {state['goal']}") for word in ("find", "read", "sum up")]}

    def execute(state: PlanState) -> PlanState:
        step = state["plan"][0]
        return {"past": [(step.title, f"{step.title}: done")]}

    def replan(state: PlanState) -> PlanState:
        rest = state["plan"][1:]
        if rest:
            return {"plan": rest}
        return {"plan": [], "answer": "; ".join(result for _, result in state["past"])}

    graph = s.graph(
        PlanState,
        {"plan": plan, "execute": execute, "replan": replan},
        ((START, "plan"), ("plan", "execute"), ("execute", "replan")),
        branches={"replan": lambda state: END if state.get("answer") else "execute"},
        interrupt_after=["plan"],
    )
    await s.run("planned", graph, {"goal": "paper"}, on("t"))
    await s.update(graph, on("t"), {"plan": [PlanStep(title="only this", result="x")]}, as_node="plan")
    await s.run("carried out", graph, None, on("t"))
    await s.audit(graph, "t", ask=False)


class DebateState(TypedDict, total=False):
    topic: str
    round: int
    arguments: Annotated[list[dict[str, Any]], operator.add]
    verdict: str


@program
async def debate_with_a_judge(s: Session) -> None:
    def argue(side: dict[str, Any]) -> dict[str, Any]:
        return {"arguments": [{"side": side["side"], "round": side["round"], "text": f"{side['side']}!"}]}

    def moderate(state: DebateState) -> Command[Any]:
        number = state.get("round", 0) + 1
        if number > 3:
            return Command(goto="judge")
        sides = [Send("argue", {"side": side, "round": number}) for side in ("for", "against")]
        return Command(goto=sides, update={"round": number})

    def judge(state: DebateState) -> DebateState:
        return {"verdict": f"{len(state['arguments'])} arguments on {state['topic']}"}

    nodes = {"moderate": (moderate, {"destinations": ("argue", "judge")}), "argue": argue, "judge": judge}
    graph = s.graph(DebateState, nodes, ((START, "moderate"), ("argue", "moderate")))
    await s.run("debated", graph, {"topic": "kelp"}, on("t"))
    await s.audit(graph, "t", ask=False)
