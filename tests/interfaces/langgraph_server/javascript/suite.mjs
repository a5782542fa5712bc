// What programs do with the client in JavaScript, against a served store: HOLDFAST_URL, HOLDFAST_TOKEN, and the package
// of the client in HOLDFAST_SDK. Prints a line of JSON: the calls by method, and what failed.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

const { Client } = await import(process.env.HOLDFAST_SDK);
const only = process.env.HOLDFAST_ONLY ?? "";
const options = { apiUrl: process.env.HOLDFAST_URL, callerOptions: { maxRetries: 0 } };
const calls = {};
const failed = [];

/** A client whose calls are counted. */
function open(token) {
  const client = new Client({ ...options, apiKey: token });
  for (const part of ["assistants", "threads", "runs", "store", "crons"]) {
    client[part] = new Proxy(client[part], {
      get(target, name) {
        const found = target[name];
        if (typeof found !== "function") return found;
        return (...given) => {
          calls[`${part}.${name}`] = (calls[`${part}.${name}`] ?? 0) + 1;
          return found.apply(target, given);
        };
      },
    });
  }
  return client;
}

const client = open(process.env.HOLDFAST_TOKEN);
const said = (text) => ({ messages: [{ type: "human", content: text }] });
const all = async (stream) => {
  const found = [];
  for await (const each of stream) found.push(each);
  return found;
};
const refused = async (status, promise) => {
  const error = await promise.then(
    () => assert.fail("it was not refused"),
    (error) => error,
  );
  assert.equal(error.status, status, String(error));
};
const newThread = async (metadata = {}) => (await client.threads.create({ metadata })).thread_id;

async function part(name, run) {
  if (only && !name.startsWith(only)) return;
  try {
    await run();
  } catch (error) {
    failed.push({ name, error: String(error?.stack ?? error) });
  }
}

await part("threads", async () => {
  const { threads } = client;
  const mark = randomUUID();
  const made = await threads.create({ metadata: { mark, n: 1 } });
  assert.equal(made.status, "idle");
  assert.equal((await threads.get(made.thread_id)).metadata.mark, mark);
  await threads.update(made.thread_id, { metadata: { n: 2 } });
  assert.deepEqual((await threads.get(made.thread_id)).metadata, { mark, n: 2 });
  const own = randomUUID();
  assert.equal((await threads.create({ threadId: own, metadata: { mark } })).thread_id, own);
  await refused(409, threads.create({ threadId: own }));
  assert.equal((await threads.create({ threadId: own, ifExists: "do_nothing" })).metadata.mark, mark);
  assert.equal((await threads.search({ metadata: { mark } })).length, 2);
  assert.equal((await threads.search({ metadata: { mark }, limit: 1 })).length, 1);
  assert.equal((await threads.search({ metadata: { mark }, offset: 1 })).length, 1);
  assert.equal((await threads.search({ ids: [own] })).length, 1);
  assert.equal((await threads.search({ metadata: { mark }, status: "busy" })).length, 0);
  const sorted = await threads.search({ metadata: { mark }, sortBy: "created_at", sortOrder: "asc" });
  assert.equal(sorted[0].thread_id, made.thread_id);
  assert.deepEqual(Object.keys((await threads.search({ ids: [own], select: ["thread_id"] }))[0]), ["thread_id"]);
  assert.equal(await threads.count({ metadata: { mark } }), 2);
  const copy = await threads.copy(own);
  assert.notEqual(copy.thread_id, own);
  assert.equal(await threads.count({ metadata: { mark } }), 3);
  await threads.delete(copy.thread_id);
  await refused(404, threads.get(copy.thread_id));
  if (threads.prune) assert.equal((await threads.prune([own])).pruned_count, 1);
  else await threads.delete(own);
  await refused(404, threads.get(own));
  await refused(404, threads.delete(own));
  await refused(404, threads.update(own, { metadata: {} }));
  await refused(422, threads.create({ ttl: { ttl: 5, strategy: "keep_latest" } }));
  const short = await threads.create({ ttl: 10 });
  assert.equal((await threads.get(short.thread_id)).thread_id, short.thread_id);
  await threads.delete(short.thread_id);
});

await part("assistants", async () => {
  const { assistants } = client;
  const [known] = await assistants.search({ graphId: "support" });
  assert.equal(known.graph_id, "support");
  assert.equal((await assistants.get(known.assistant_id)).name, known.name);
  assert.equal((await assistants.get("support")).assistant_id, known.assistant_id);
  const graph = await assistants.getGraph("support");
  assert.ok(graph.nodes.some((each) => each.id === "plan"));
  assert.equal((await assistants.getSchemas("support")).graph_id, "support");
  assert.ok(Object.keys(await assistants.getSubgraphs("nested")).includes("inner"));
  assert.ok(Object.keys(await assistants.getSubgraphs("nested", { namespace: "inner" })).includes("inner"));
  const made = await assistants.create({ graphId: "support", name: "Warm", context: { tone: "warmly" } });
  assert.equal(made.version, 1);
  const updated = await assistants.update(made.assistant_id, { context: { tone: "coldly" } });
  assert.equal(updated.version, 2);
  assert.equal((await assistants.getVersions(made.assistant_id)).length, 2);
  assert.equal((await assistants.setLatest(made.assistant_id, 1)).version, 1);
  const values = await client.runs.wait(await newThread(), made.assistant_id, { input: said("hi") });
  assert.equal(values.log[0], "planned warmly");
  assert.equal((await assistants.search({ name: "Warm", metadata: {} })).length > 0, true);
  if (assistants.count) assert.equal(await assistants.count({ graphId: "nested" }), 1);
  await assistants.delete(made.assistant_id);
  await refused(404, assistants.get(made.assistant_id));
  await refused(400, assistants.delete(known.assistant_id));
  await refused(404, assistants.create({ graphId: "none" }));
});

await part("runs", async () => {
  const { runs, threads } = client;
  const thread = await newThread();
  const values = await runs.wait(thread, "support", { input: said("one") });
  assert.deepEqual(values.log, ["planned plainly", "replied"]);
  const made = await runs.create(thread, "support", { input: said("two"), metadata: { by: "suite" } });
  assert.equal(made.thread_id, thread);
  assert.equal((await runs.join(thread, made.run_id)).messages.at(-1).content, "You said two");
  const found = await runs.get(thread, made.run_id);
  assert.equal(found.status, "success");
  assert.equal(found.metadata.by, "suite");
  assert.equal((await runs.list(thread)).length, 2);
  assert.equal((await runs.list(thread, { limit: 1 })).length, 1);
  assert.equal((await runs.list(thread, { status: "error" })).length, 0);
  assert.equal((await threads.get(thread)).status, "idle");
  for (const mode of ["values", "updates", "messages-tuple", "custom", "debug", "tasks", "checkpoints", "events"]) {
    const events = await all(runs.stream(thread, "support", { input: said(mode), streamMode: mode }));
    const kinds = new Set(events.map((each) => each.event));
    assert.ok(kinds.has("metadata"));
    assert.ok(kinds.has(mode === "messages-tuple" ? "messages" : mode), `${mode}: ${[...kinds]}`);
  }
  const several = await all(runs.stream(thread, "support", { input: said("s"), streamMode: ["updates", "values"] }));
  assert.deepEqual([...new Set(several.map((each) => each.event))].sort(), ["metadata", "updates", "values"]);
  const nested = await newThread();
  const inner = await all(
    runs.stream(nested, "nested", { input: said("in"), streamMode: "updates", streamSubgraphs: true }),
  );
  assert.ok(inner.some((each) => each.event.startsWith("updates|inner:")));
  const context = await runs.wait(thread, "support", { input: said("c"), context: { tone: "kindly" } });
  assert.ok(context.log.includes("planned kindly"));
  const stateless = await runs.wait(null, "support", { input: said("alone") });
  assert.equal(stateless.messages.at(-1).content, "You said alone");
  assert.ok((await all(runs.stream(null, "support", { input: said("alone") }))).length > 2);
  const batch = await runs.createBatch([
    { assistantId: "support", input: said("b1") },
    { assistantId: "support", input: said("b2") },
  ]);
  assert.equal(batch.length, 2);
  for (const each of batch) await runs.join(each.thread_id, each.run_id);
  const late = await newThread();
  const delayed = await runs.create(late, "support", { input: said("late"), afterSeconds: 30 });
  assert.equal(delayed.status, "pending");
  await runs.cancel(late, delayed.run_id);
  assert.equal((await runs.get(late, delayed.run_id)).status, "interrupted");
  await runs.delete(late, delayed.run_id);
  await refused(404, runs.get(late, delayed.run_id));
  await refused(404, runs.wait(thread, "none", { input: {} }));
  await refused(404, runs.create(randomUUID(), "support", { input: {} }));
  await refused(400, runs.create(thread, "support", { input: {}, webhook: "http://127.0.0.1:1/" }));
  const unknown = randomUUID();
  assert.ok(await runs.wait(unknown, "support", { input: said("new"), ifNotExists: "create" }));
  assert.equal((await threads.get(unknown)).thread_id, unknown);
});

await part("streams", async () => {
  const { runs } = client;
  const thread = await newThread();
  const run = await runs.create(thread, "support", {
    input: { ...said("again"), pause: 0.2 },
    streamMode: ["updates", "custom"],
    streamResumable: true,
  });
  const whole = await all(runs.joinStream(thread, run.run_id, { lastEventId: "-1" }));
  const numbered = whole.filter((each) => each.id !== undefined);
  assert.ok(numbered.length >= 3, JSON.stringify(whole));
  const rest = await all(runs.joinStream(thread, run.run_id, { lastEventId: numbered[1].id }));
  assert.deepEqual(
    rest.map((each) => each.id),
    numbered.slice(2).map((each) => each.id),
  );
  const custom = await all(runs.joinStream(thread, run.run_id, { lastEventId: "-1", streamMode: ["custom"] }));
  assert.ok(custom.every((each) => ["custom", "metadata"].includes(each.event)));
  await refused(404, runs.join(thread, "0".repeat(32)));
});

await part("questions", async () => {
  const { runs, threads } = client;
  const thread = await newThread();
  const asked = await runs.wait(thread, "approval", { input: said("order") });
  assert.deepEqual(asked.__interrupt__[0].value, { question: "Who approves?" });
  assert.equal((await threads.get(thread)).status, "interrupted");
  const state = await threads.getState(thread);
  assert.deepEqual(state.next, ["ask"]);
  assert.equal(state.tasks[0].interrupts.length, 1);
  const answered = await runs.wait(thread, "approval", { command: { resume: "Ada" } });
  assert.ok(answered.log.includes("approved by Ada"));
  assert.equal((await threads.get(thread)).status, "idle");
  const other = await newThread();
  await runs.wait(other, "nested", { input: said("order") });
  const deep = await threads.getState(other, undefined, { subgraphs: true });
  assert.ok(deep.tasks[0].state.next.includes("ask"));
  const streamed = await all(
    runs.stream(other, "nested", { command: { resume: "Bob" }, streamMode: "values", streamSubgraphs: true }),
  );
  assert.ok(streamed.at(-1).data.log.includes("approved by Bob"));
  const before = await newThread();
  await runs.wait(before, "support", { input: said("stop"), interruptBefore: ["reply"] });
  assert.deepEqual((await threads.getState(before)).next, ["reply"]);
  assert.ok((await runs.wait(before, "support", { input: null })).log.includes("replied"));
  const after = await newThread();
  await runs.wait(after, "support", { input: said("stop"), interruptAfter: ["plan"] });
  assert.deepEqual((await threads.getState(after)).next, ["reply"]);
  await refused(400, runs.wait(after, "support", { command: { unknown: 1 } }));
});

await part("history", async () => {
  const { runs, threads } = client;
  const thread = await newThread();
  await runs.wait(thread, "support", { input: said("first") });
  const history = await threads.getHistory(thread);
  assert.ok(history.length >= 3);
  assert.equal(history[0].values.messages.length, 2);
  assert.equal((await threads.getHistory(thread, { limit: 1 })).length, 1);
  const earlier = await threads.getHistory(thread, { before: { configurable: history[0].checkpoint } });
  assert.equal(earlier[0].checkpoint.checkpoint_id, history[1].checkpoint.checkpoint_id);
  const at = history.find((each) => each.next.includes("reply"));
  assert.equal((await threads.getState(thread, at.checkpoint.checkpoint_id)).next[0], "reply");
  assert.equal((await threads.getState(thread, at.checkpoint)).values.messages.length, 1);
  await threads.updateState(thread, { values: { log: ["by hand"] }, asNode: "plan" });
  assert.ok((await threads.getState(thread)).values.log.includes("by hand"));
  const forked = await threads.updateState(thread, {
    values: { log: ["forked"] },
    checkpointId: at.checkpoint.checkpoint_id,
  });
  assert.ok(forked.checkpoint.checkpoint_id);
  const replayed = await runs.wait(thread, "support", { input: null, checkpointId: at.checkpoint.checkpoint_id });
  assert.equal(replayed.messages.length, 2);
  const copy = await threads.copy(thread);
  assert.ok((await threads.getHistory(copy.thread_id)).length >= 3);
  if (threads.prune)
    assert.equal((await threads.prune([copy.thread_id], { strategy: "keep_latest" })).pruned_count, 1);
  const made = await threads.create({
    graphId: "support",
    supersteps: [{ updates: [{ values: said("given"), asNode: "plan" }] }],
  });
  assert.equal((await threads.getState(made.thread_id)).values.messages[0].content, "given");
  await refused(404, threads.getState(thread, randomUUID()));
});

await part("strategies", async () => {
  const { runs, threads } = client;
  const slow = { ...said("slow"), pause: 1 };
  const rejecting = await newThread();
  const first = await runs.create(rejecting, "support", { input: slow });
  await refused(409, runs.create(rejecting, "support", { input: said("x"), multitaskStrategy: "reject" }));
  const second = await runs.create(rejecting, "support", { input: said("queued"), multitaskStrategy: "enqueue" });
  await runs.join(rejecting, second.run_id);
  assert.equal((await runs.get(rejecting, first.run_id)).status, "success");
  const interrupting = await newThread();
  const cut = await runs.create(interrupting, "support", { input: slow });
  await runs.wait(interrupting, "support", { input: said("instead"), multitaskStrategy: "interrupt" });
  assert.equal((await runs.get(interrupting, cut.run_id)).status, "interrupted");
  const rolling = await newThread();
  await runs.wait(rolling, "support", { input: said("kept") });
  const gone = await runs.create(rolling, "support", { input: slow });
  const values = await runs.wait(rolling, "support", { input: said("after"), multitaskStrategy: "rollback" });
  assert.ok(!values.messages.some((each) => each.content === "slow"));
  await refused(404, runs.get(rolling, gone.run_id));
  const cancelled = await newThread();
  const waited = await runs.create(cancelled, "support", { input: { ...said("long"), pause: 30 } });
  await runs.cancel(cancelled, waited.run_id, true);
  assert.equal((await runs.get(cancelled, waited.run_id)).status, "interrupted");
  assert.notEqual((await threads.get(cancelled)).status, "busy");
});

await part("items", async () => {
  const { store } = client;
  const place = ["suite", randomUUID()];
  await store.putItem(place, "a", { colour: "red", n: 1 });
  await store.putItem(place, "b", { colour: "blue", n: 2 });
  assert.equal((await store.getItem(place, "a")).value.colour, "red");
  assert.equal((await store.searchItems(place)).items.length, 2);
  assert.equal((await store.searchItems(place, { filter: { colour: "blue" } })).items[0].key, "b");
  assert.equal((await store.searchItems(place, { limit: 1 })).items.length, 1);
  assert.equal((await store.searchItems(place, { offset: 1 })).items.length, 1);
  assert.deepEqual((await store.listNamespaces({ prefix: place })).namespaces, [place]);
  assert.equal((await store.listNamespaces({ prefix: ["suite"], maxDepth: 1 })).namespaces.length, 1);
  await store.deleteItem(place, "a");
  assert.equal(await store.getItem(place, "a").catch((error) => error.status), 404);
  assert.equal((await store.searchItems(place)).items.length, 1);
});

await part("thread streams", async () => {
  if (!client.threads.joinStream) return;
  const thread = await newThread();
  await client.runs.wait(thread, "support", { input: said("one") });
  const told = [];
  const stop = new AbortController();
  try {
    for await (const each of client.threads.joinStream(thread, { streamMode: "lifecycle", signal: stop.signal })) {
      told.push(each.event);
      if (told.length === 2) await client.runs.create(thread, "support", { input: said("two") });
      if (told.length === 4) break;
    }
  } finally {
    stop.abort();
  }
  assert.deepEqual(told, ["metadata", "run_done", "metadata", "run_done"]);
});

await part("errors", async () => {
  const stranger = open("hf_start_wrong");
  await refused(401, stranger.threads.search());
  await refused(401, stranger.runs.wait(null, "support", {}));
  if (process.env.HOLDFAST_OTHER) {
    const other = open(process.env.HOLDFAST_OTHER);
    const thread = await newThread();
    await refused(404, other.threads.get(thread));
    await refused(404, other.threads.getState(thread));
    await refused(404, other.runs.list(thread));
    assert.equal((await other.threads.search({ ids: [thread] })).length, 0);
    const own = await other.threads.create();
    assert.equal((await other.runs.wait(own.thread_id, "support", { input: said("mine") })).messages.length, 2);
  }
});

console.log(JSON.stringify({ calls, total: Object.values(calls).reduce((a, b) => a + b, 0), failed }));
