"""The table of cases: lines of Python that run in the three languages, on a store of each, and have the same result.

A line that ends with `# code` fails with an error of that code.
"""

from __future__ import annotations

from holdfast.agents import Machine, PersistentAgent


class ScriptClerk(PersistentAgent, name="script-clerk"):
    """An agent with a field and a machine."""

    served: int = 0
    machine = Machine("idle", "busy", "closed", final=["closed"])
    machine.add("serve", "idle", "busy", action="count")
    machine.add("rest", "busy", "idle")
    machine.add("close", "*", "closed")

    def count(self, number: int) -> None:
        self.served += number or 0


CASES = """
# checkpoints by the store
store.thread("chat").put({"messages": ["hi"], "plan": {"done": 0}}).step
store.thread("chat").put({"messages": ["hi", "ho"], "plan": {"done": 0}}, tag="asked", metadata={"user": "ada"})
store.thread("chat").put({"messages": ["hi", "ho"], "plan": {"done": 0}}, if_changed=True).step
store.thread("").put({}) # invalid
store.thread("chat").put([1]) # invalid
store.thread("chat").get()
store.thread("chat").get("HEAD~1").state
store.thread("chat").get(at="asked").metadata
store.thread("nothing").get() # not-found
store.thread("chat").update({"plan.done": 1, "messages[-1]": "hey"}).kind
store.thread("chat").update({"plan.done": 2}, remove=["messages[0]"]).step
store.thread("chat").append("messages", {"role": "user", "content": "hi"}, "ho", tag="said").kind
store.thread("chat").append("plan", 1) # invalid
store.thread("chat").increment("plan.done").step
store.thread("chat").increment("plan.cost", 0.5).step
store.thread("chat").add_to_set("seen", "a", "b").step
store.thread("chat").max("plan.done", 9).step
store.thread("chat").update({"plan.done": Increment(2), "messages": Append("bye")}).step
store.thread("chat").get().state
store.thread("chat").log(limit=2)
store.thread("chat").log(metadata={"user": "ada"})[0].step
list(store.thread("chat").log(limit=1).all())
store.threads(prefix="ch")
store.threads(limit=-1) # invalid
store.threads(status="idle", prefix="ch")
store.threads(status="asleep") # invalid
store.search("hey")
store.usage(by="model", since="1h")
len(store.changes().threads)
store.status(kinds=["thread"]).threads
store.status().details
store.thread("gone").put({"a": 1}).step
store.thread("gone").delete()
store.thread("gone").delete()

# a thread
store.thread("t").put({"a": 1, "b": [1, 2, 3], "c": None})
first = store.thread("t").get()
store.thread("t").get(first).step
store.thread("t").put({"a": 2, "b": [1, 2, 3], "c": None}, parent=first, labels=["good"]).step
store.thread("t").put({"a": 3}, parent=first, on_conflict="raise") # conflict
store.thread("t").update({"a": 5}).state
store.thread("t").find("HEAD~1").step
store.thread("t").find("nothing") # not-found
store.thread("t").get(0).state
store.thread("t").pending_writes()
store.thread("t").pending_writes("nothing") # not-found
store.thread("t").get(-1) # invalid
store.thread("t").info()
store.thread("t").status().status
store.thread("nothing").status() # not-found
store.thread("t").answer("yes") # not-waiting
store.thread("nothing").answer("yes", question="q") # not-found
store.thread("t").log(label="good")
store.thread("t").diff("HEAD~1", "HEAD")
store.thread("t").diff(state={"a": 5}).summary
store.thread("t").diff("HEAD~1", "HEAD").patch()
store.thread("t").diff("HEAD~1", "HEAD").patch(test=True)
store.thread("t").diff("HEAD~1", "HEAD").text(by_word=True)
store.thread("t").diff("HEAD~1", "HEAD").stat()
store.thread("t").diff("HEAD~1", "HEAD").apply({"a": 2, "b": [1, 2, 3], "c": None})
store.thread("t").blame("a")
store.thread("t").blame("b", limit=2)
store.thread("t").history("a")
store.thread("t").tag("v1")
store.thread("t").tag("v1", "HEAD~1") # conflict
store.thread("t").tag("v1", "HEAD~1", move=True)
store.thread("t").tags()
store.thread("t").untag("v1")
store.thread("t").label("seen", at="HEAD~1")
store.thread("t").labels()
store.thread("t").unlabel("seen")
store.thread("t").pin("HEAD", reason="why")
store.thread("t").pins()
store.thread("t").unpin()
store.thread("t").unpin() # not-found
store.thread("t").hold(reason="court")
store.thread("t").holds()
store.thread("t").delete() # denied
store.thread("t").release()
store.thread("t").expires()
store.thread("t").expire("30d")
store.thread("t").expire(None)
store.thread("t").expire("soon") # invalid
store.thread("t").fork("draft", at="HEAD~1", changes={"a": 9})
store.thread("t").put({"a": 10, "b": [1, 2, 3], "c": None}, branch="draft").step
store.thread("t").branches()
store.thread("t").rename_branch("draft", "sketch")
store.thread("t").merge("sketch") # conflict
store.thread("t").merge("sketch", resolve=lambda conflict: conflict.theirs + conflict.ours).step
store.thread("t").get().state
store.thread("t").fork("other").name
store.thread("t").switch("other").kind
store.thread("t").switch("main").kind
store.thread("t").delete_branch("other", dry_run=True)
store.thread("t").delete_branch("other", force=True)
store.thread("t").restore("HEAD~2").kind
store.thread("t").owner()
store.thread("t").delete()
store.thread("t").get() # not-found

# transactions
store.transaction(lambda t: t.put("pair", {"n": 1}))
store.transaction(lambda t: t.update("pair", {"n": 2}))
store.transaction(lambda t: t.get("pair").state)
store.transaction(lambda t: t.state("agent:a").set("x", 1))
store.transaction(lambda t: [t.state("agent:a").get("x"), t.state("agent:a").get("y", 5), t.state("agent:a").has("x")])
store.transaction(lambda t: t.state("agent:a").increment("x", 2))
store.transaction(lambda t: t.state("agent:a").append("list", 1, 2))
store.transaction(lambda t: t.state("agent:a").add_to_set("set", 1, 1))
store.transaction(lambda t: t.state("agent:a").max("most", 4))
store.transaction(lambda t: t.state("agent:a").patch("dict", {"k": 1}))
store.transaction(lambda t: t.state("agent:a").change("x", lambda value: value * 2))
store.transaction(lambda t: t.state("agent:a").expire("most", "1h"))
store.transaction(lambda t: t.state("agent:a").list_keys())
store.transaction(lambda t: t.state("agent:a").delete("dict"))
store.transaction(lambda t: fail(ConflictError("mine", code="under-way"))) # under-way
store.transaction(lambda t: t.get("nothing")) # not-found
store.transaction(3) # invalid

# state
store.state("agent:a").set("plan", {"goal": "x", "steps": [1, 2.5, None, True]})
store.state(agent="a").get("plan")
store.state("agent:a").get("nothing")
store.state("agent:a").get("nothing", 7)
store.state("agent:a").save("saved", {"a": [1]}, ttl="1h")
store.state("agent:a").load("saved")
store.state("agent:a").load("nothing", 7)
store.state("agent:a").delete("saved")
store.state("agent:a").has("plan")
store.state("agent:a").count()
store.state("agent:a").scope
store.state("bad scope").get("x") # invalid
store.state("agent:a").item("plan").value
store.state("agent:a").item("nothing") # not-found
store.state("agent:a").set("plan", 1, expected=99) # version-mismatch
store.state("agent:a").set("plan", 1, expected=99, on_conflict="overwrite")
store.state("agent:a").set("once", "a", ttl="1h")
store.state("agent:a").patch("dict", {"n": Increment(2), "list": Append("a"), "set": AddToSet(1), "most": Max(3)})
store.state("agent:a").patch("dict", {"a": {"b": 1}}, remove=["most"])
store.state("agent:a").get("dict")
store.state("agent:a").change("n", lambda value: value + 1, 10)
store.state("agent:a").change("n", lambda value: fail(VetoError("no"))) # vetoed
store.state("agent:a").change("n", lambda value: MISSING)
store.state("agent:a").has("n")
store.state("agent:a").increment("runs")
store.state("agent:a").increment("runs", 2.5)
store.state("agent:a").increment("once") # invalid
store.state("agent:a").append("list", "b", {"c": []})
store.state("agent:a").add_to_set("set", 2)
store.state("agent:a").max("most", 9)
store.state("agent:a").batch({"x/1": 1, "x/2": 2}, delete=["once"])
store.state("agent:a").list_keys("x/")
store.state("agent:a").list_keys(pattern="x/*", limit=1)
list(store.state("agent:a").list_keys(limit=1).all())
store.state("agent:a").list_items("x/")
store.state("agent:a").expire("x/1", "2h")
store.state("agent:a").expire("nothing", 5) # not-found
store.state("agent:a").pop("x/1")
store.state("agent:a").pop("x/1", "default")
store.state("agent:a").pop("x/1") # not-found
store.state("agent:a").setdefault("x/2", 5)
store.state("agent:a").setdefault("x/3", [None])
store.state("agent:a").delete("x/2")
store.state("agent:a").history("runs")
len(store.state("agent:a").history(limit=3))
store.state("agent:a").at(1)
store.state("agent:a").get_at("runs", 1, "none")
store.state("agent:a").diff(1).summary
store.state("agent:a").rollback(1, "runs")
store.state("agent:a").copy_to(store.state("agent:b"))
store.state("agent:a").copy_to(store.state("agent:b")) # conflict
store.state("agent:a").move_to(store.state("agent:c"), on_conflict="overwrite", nested=True)
store.state("agent:a").count()
store.state("agent:b").clear()
store.scopes(pattern="agent:*")
watch = store.state("agent:w").watch("k*")
store.state("agent:w").set("key", 1)
watch.poll(5)
watch.scope
store.state("agent:w").watch("k*", cursor=watch.cursor).poll()
watch.close()
store.state("agent:v").set("v", {"bytes": b"\\x00\\xff", "tuple": (1, (2,)), "set": {1}, "float": 2.0, "n": 1234567890})
store.state("agent:v").get("v")

# sessions
session = store.sessions.start("s1", user="ada", metadata={"k": 1}, on_end="archive")
session
session.state.set("seen", 1)
session.touch()
store.sessions.get("s1")
store.sessions.get("nothing") # not-found
store.sessions.start("s1", user="ada") # conflict
store.sessions.touch("s1")
store.sessions.update("s1", {"more": 2}).metadata
store.sessions.list(user="ada")
session.end("bye")
store.sessions.archived("s1")
store.sessions.resume("s1").status
store.sessions.end("s1", "over").status
store.sessions.collect()
store.sessions.delete("s1")
store.sessions.list()

# artifacts
store.artifacts.register(b"content", id="a1", type="text", metadata={"k": [1]})
store.artifacts.register(b"other", id="a1") # conflict
store.artifacts.get("a1")
store.artifacts.read("a1")
store.artifacts.verify("a1").sha256
store.artifacts.list(type="text")
store.artifacts.changes("a1")
store.artifacts.of("agent:a")
store.artifacts.of() # invalid
store.artifacts.delete("a1")
store.artifacts.read("a1") # not-found

# agents
clerk = store.agents.create("script-clerk", "c1", desk=1)
store.agents.create("script-clerk", "c1") # agent-exists
store.agents.create("nothing", "c2") # agent-class-unknown
clerk.id
clerk.status
clerk.start()
clerk.transition("serve", 2)
clerk.transition("serve") # no-transition
[clerk.state, clerk.version, clerk.configuration, clerk.context, clerk.metadata]
clerk.conversation.append({"role": "user", "content": "hello"})
clerk.conversation.extend([{"role": "assistant", "content": "yes"}, "text"])
clerk.conversation.say("more")
clerk.conversation.count()
clerk.conversation.get(0)
clerk.conversation.get(99) # not-found
clerk.conversation.slice(1, 3)
clerk.conversation.all()
clerk.conversation.last(2)
clerk.conversation.window(max_messages=1)
clerk.conversation.search("hello")
clerk.conversation.tokens
clerk.tools.declare("web", ["net"], "reads pages")
clerk.tools.may("web")
clerk.tools.call("web", lambda number: number + 1, 1) # tool-denied
clerk.tools.allow("net")
clerk.tools.call("web", lambda number: number + 1, 1)
clerk.tools.permissions
clerk.tools.deny("net", tool="web")
clerk.tools.forget("web")
clerk.workflow.plan("read", "write")
clerk.workflow.begin("read")
clerk.workflow.current
clerk.workflow.complete()
clerk.workflow.begin("write")
clerk.workflow.fail("write", "no ink")
[clerk.workflow.done_count, clerk.workflow.step_count, clerk.workflow.percent + 0.25]
clerk.workflow.steps["write"]["error"]
clerk.workflow.get("nothing", 3)
clerk.update_field("served", Increment(5))
clerk.mark_changed()
clerk.flush()
clerk.save()
clerk.pause()
clerk.resume()
clerk.recover()
clerk.recoveries
clerk.metrics.unsaved
clerk.rollback(2)
clerk.reload()
clerk.conversation.replace(["one"])
clerk.conversation.clear()
clerk.conversation.append("kept")
clerk.fail("tired")
clerk.status
clerk.start()
clerk.stop()
store.agents.exists("c1")
store.agents.load("c1").fields
store.agents.load("nothing") # not-found
store.agents.messages("c1", 0, 5)
len(store.agents.history("c1", limit=3))
store.agents.diff("c1", 1, 2).summary
store.agents.transitions("c1", oldest_first=True)[0].trigger
store.agents.list(prefix="c")[0].id
document = store.agents.export("c1")
store.agents.import_(document, id="c9").id
store.agents.import_(document, id="c9") # agent-exists
store.agents.rollback("c9", 1).version
store.agents.resolve("c9", "back") # not-found
store.agents.create("script-clerk", "c2").stop()
store.agents.restore("c9").version
store.agents.restore("nothing") # not-found
store.agents.transfer("c1", "c2", reason="holiday").phase
store.agents.restore("c2").transfer("c9", accept=True).phase
store.agents.transfer_many({"c9": "c2"}, accept=True)[0].error
store.agents.transfers("c2")[0].source
store.agents.metrics().unsaved
store.agents.delete("c9")

# an agent whose machine is elsewhere
store.agents.save_state("e1", type="crawler", state="idle", data={"url": "x"}).version
store.agents.record_transition("e1", "idle", "busy", trigger="fetch", data={"n": 1}).outcome
store.agents.record_transition("e1", "busy", "done", success=False, error="pages are missing").error
store.agents.record_transition("nobody", "a", "b") # not-found
store.agents.save_state("c1", state="idle") # agent-class
store.agents.load("e1").state

# durable steps of an agent
desk = store.agents.create("script-clerk", "d1")
desk.once("charge-1", lambda: 41 + 1)
desk.once("charge-1", lambda: 0)
desk.once("charge-2", lambda price: price * 2, 21, retry=1)
desk.once("charge-2", lambda price: price * 2, 22) # step-arguments
desk.steps.once("charge-3", lambda: fail(VetoError("no"))) # vetoed
desk.steps.list()[0].key
desk.steps.get("charge-1").state
desk.steps.get("nothing") # not-found
desk.steps.resolve("charge-3", result=7).resolved
desk.steps.resolve("charge-1", result=7) # step-done
desk.steps.version("new-prices")
store.agents.machine("nothing") # not-found
store.agents.signal("not-yet", "hello", 1, create=True)
store.agents.unsaved()[0]
desk.timers.set("remind", "1h", signal="late", value={"n": 1}).signal
desk.timers.list()[0].name
desk.timers.cancel("remind")
desk.timers.cancel("remind")
store.agents.signal("d1", "paid", {"amount": 5}, id="s-1")
store.agents.signal("d1", "paid", {"amount": 5}, id="s-1")
desk.steps.signals("paid")[0].value
desk.wait_for("paid").value
desk.wait_for("paid", timeout=0)
store.agents.steps("d1").get("charge-2").state
store.agents.timers("d1").list()

# sharing
news = store.sharing.topic("news", workflow="w1")
reader = news.subscribe("r1", start="start")
news.publish({"text": "one"}).number
news.publish("two").number
news.count()
news.read(1)[0].value
news.scope
reader.receive().value
reader.lag()
reader.ack()
reader.cursor
reader.receive_many(10, timeout=1)[0].value
reader.rewind()
reader.receive_many(10)[0].value
reader.receive_many(0) # invalid
news.subscribers()[0].name
news.trim(older_than="1h")
news.unsubscribe("r1")
news.delete()
asked = store.sharing.requests("sums")
first_id = asked.ask({"a": 1})
taken = asked.take()
[taken.value, taken.tries, taken.actor]
len(taken.id) + len(taken.correlation) * 0
asked.extend(taken, "1m")
asked.answer(taken, {"sum": 1})
asked.answer(taken, {"sum": 1}) # lease-lost
asked.wait(first_id)
asked.take()
asked.scope
second_id = asked.ask("again", timeout=60)
asked.pending()
asked.fail(asked.take(), "cannot")
asked.wait(second_id) # handler-failed
asked.cancel(asked.ask("more"))
asked.call("nobody", timeout=0.01) # no-responder
asked.trim()
line = store.sharing.pipeline("books", ["read", "print"], tries=1)
len(line.put({"title": "x"}))
len(line.put_many([1, 2]))
task = line.take("read")
[task.stage, task.value, task.tries]
len(task.id) + len(task.correlation) * 0
line.extend(task, "1m")
line.done(task, {"title": "X"})
line.done(task) # lease-lost
line.take("nothing") # invalid
line.fail(line.take("read"), "torn")
line.done(line.take("print"))
line.results()[0].value
dead = line.dead()[0]
[dead.stage, dead.value, dead.error]
line.requeue(dead.id)
line.stats().results
line.forget([line.results()[0].id])
line.trim()
line.stages
line.scope
paper = store.sharing.document("paper")
paper.read().version
paper.edit(lambda value: {"title": "a"}, {}).value
paper.save({"title": "b"}, 1).version
paper.save({"title": "c"}, 1, on_conflict="raise") # version-mismatch
paper.patch({"pages": 3})
paper.read(2).value
paper.wait(1, timeout=1).version
len(paper.history())
paper.scope
paper.delete()

# hooks
store.hooks.before("state.set", name="guard", key="h*")(lambda call: fail(VetoError("no")))
store.state("agent:h").set("h1", 1) # vetoed
store.hooks.list()[0].name
store.hooks.remove("guard")
store.hooks.remove("guard") # not-found
store.hooks.before("state.set", name="upper", key="u*")(lambda call: [call.value, call.note(seen=True)])
store.state("agent:h").set("u1", "x")
store.state("agent:h").get("u1")
store.hooks.after("state.set", name="later")(lambda call: None)
store.state("agent:h").set("z", 1)
store.hooks.drain(20)
store.hooks.history("upper")[0].outcome
store.hooks.get(store.hooks.history("upper")[0].reference).outcome
store.hooks.statistics()[0].hook
store.hooks.before("no.such.point")(lambda call: None) # invalid

# the timeline
store.thread("told").put({"a": 1}).step
store.thread("told").put({"a": 2}).step
len(store.timeline.query(thread="told"))
store.timeline.query("kind:", limit=1) # invalid
last = store.timeline.query(thread="told", limit=1)[0]
len(store.timeline.causes(last.id).events)
store.timeline.causes(thread="told", path="a").events[0].kind
store.timeline.effects(last.id).links
store.timeline.effects("nothing") # not-found
store.as_identity("agent:me").timeline.query(thread="told")

# jobs
store.jobs.add("nightly", "verify", schedule="daily at 03:00", settings={"level": "structure"}).schedule
store.jobs.add("nightly", "verify") # conflict
store.jobs.add("other", "nothing") # invalid
store.jobs.add("tidy", "tidy", replace=True, paused=True).paused
store.jobs.get("nightly").settings
store.jobs.list()[0].name
store.jobs.due()
store.jobs.pause("nightly").paused
store.jobs.resume("nightly").paused
store.jobs.run("tidy").outcome
store.jobs.remove("tidy")
store.jobs.get("tidy") # not-found

# an identity
store.as_identity("agent:me").state("agent:me").set("mine", 1)
store.as_identity("agent:me").state("agent:you").set("yours", 1) # denied
store.as_identity("agent:me").thread("own").put({"a": 1}).actor
store.as_identity("agent:me").thread("chat").get() # not-found
store.as_identity("agent:me").threads()
store.as_identity("agent:me").search("a")
store.as_identity("agent:me").usage()
store.as_identity("agent:me").scopes()
len(store.as_identity("agent:me").changes().threads)
store.as_identity("agent:me").transaction(lambda t: t.state("agent:me").get("mine"))
store.as_identity("agent:me").identity
store.thread("chat").name
store.as_identity("agent:me", mode="read-only").mode
granted = store.as_identity("agent:me").grant("agent:you", "read", keys="m*")
store.as_identity("agent:you").granted()
len(store.as_identity("agent:me").grants())
store.as_identity("agent:me").revoke(granted).right
store.as_identity("agent:me").sharing.topic("own", agent="me").publish(1).number
store.as_identity("agent:me").sharing.topic("own", agent="you").publish(1) # denied
store.as_identity("agent:me").sessions.list()
store.as_identity("agent:me").artifacts.list()
store.as_identity("agent:me").agents.list()

# rights
given = store.access.grant("agent:b", ["read"], "agent:a", keys="plan")
store.access.may("agent:b", "read", "agent:a", "plan")
store.access.may("agent:b", "write", "agent:a", "plan")
store.access.grants("agent:b")[0].keys
store.access.revoke(given).keys
store.access.revoke("nothing") # not-found
store.access.join("team", "agent:b", "agent:c")
store.access.groups()
store.access.leave("team", "agent:c")
store.access.assign("reader", "agent:b") # not-found
store.access.unassign("reader", "agent:b") # not-found
store.access.assignments()
store.access.roles()
store.access.drop_role("reader") # not-found
store.access.freeze("agent:b", reason="odd")
store.access.frozen()
store.access.unfreeze("agent:b")
store.access.allow_children("agent:a")
store.access.parents()
store.access.forbid_children("agent:a")
store.access.set_owner("chat", "agent:a")
store.access.cut_off("agent:b")
store.audit.query(action="freeze")[0].scope
store.audit.query(limit=-1) # invalid
store.audit.verify().findings

# maintenance
store.maintenance.verify("chat").findings
store.maintenance.verify(level="nothing") # invalid
store.maintenance.compact("chat")
store.maintenance.prune("chat", keep_last=2, dry_run=True).dropped
store.maintenance.prune("chat") # invalid
store.maintenance.delete(["nothing"], dry_run=True) # not-found
store.maintenance.delete_stale("updated<90d").deleted
store.maintenance.delete_stale("updated<90d", kinds="scope") # invalid
store.maintenance.delete(["chat"], dry_run=True)[0].steps
len(store.maintenance.doctor()) * 0
store.maintenance.heads("chat").tenant
store.maintenance.hold("agent:a", kind="scope", reason="court")
store.maintenance.holds()[0].thread
store.maintenance.release("agent:a", kind="scope")
store.maintenance.set_quota(threads=1000)
store.maintenance.quota().limits.threads
store.maintenance.quarantine()
store.maintenance.sweep_orphans(dry_run=True).rows
store.maintenance.build_index().threads * 0
store.maintenance.drop_index()

# backups
copies = store.backups("main")
made = copies.create(reason="first").number
store.thread("chat").put({"messages": ["later"]}).kind
copies.create().number
copies.list()[0].reason
copies.list(store="nothing") # no-backup
covered = copies.covered()
copies.show("1")[0].number
copies.diff("1", "2")[0].name
copies.verify().findings
copies.drill().findings
copies.repair(dry_run=True).rebuilt
copies.restore("1", threads=["chat"], as_thread="old-chat").dry_run
store.thread("old-chat").get().state
copies.restore("99") # no-backup
copies.pin("1", reason="keep")
copies.suspend_deletion(reason="attack")
copies.prune(keep_last=1) # deletion-suspended
copies.allow_deletion()
copies.prune(keep_last=1, dry_run=True).removed
copies.unpin("1")
copies.schedule("every 1d", drill=None)[0].name

# replay
store.hooks.before("state.set", name="limit", key="limited", record=True)(lambda call: None)
store.state("agent:r").set("limited", 70)
replayed = replay.run_hooks(store, "tests.store.replayed_hooks:register", hook="limit")
replayed.calls[0].outcome
replayed.check().differing
replayed.skipped
replay.run_hooks(store, "tests.store.replayed_hooks:register", hook="none").summary
replay.run(store, "tests.store.replayed_hooks:register") # invalid
replay.run_agent(store, "nothing", "tests.store.replayed_hooks:Clerk") # not-found
replay.run_agent(store, "clerk-1", "tests.store.replayed_hooks:Clerk").check().steps
replay.compare(store, store, thread="nothing") # not-found
"""


def cases() -> list[tuple[str, str]]:
    """Return the lines, each with the code of its error, or an empty one."""
    found = []
    for line in CASES.splitlines():
        if line and not line.startswith("#"):
            text, _, code = line.partition(" # ")
            found.append((text, code))
    return found
