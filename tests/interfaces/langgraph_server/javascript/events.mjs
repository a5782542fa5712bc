// `threads.stream` of the client in JavaScript, over the transport in HOLDFAST_TRANSPORT. Prints what failed as JSON.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import WebSocket from "ws";

const { Client } = await import(process.env.HOLDFAST_SDK);
const transport = process.env.HOLDFAST_TRANSPORT;
const token = process.env.HOLDFAST_TOKEN;
const isSocket = transport === "websocket";
const client = new Client({ apiUrl: process.env.HOLDFAST_URL, apiKey: token, callerOptions: { maxRetries: 0 } });
// A WebSocket of a browser has no headers, so the client refuses those of its options there.
const bare = new Client({ apiUrl: process.env.HOLDFAST_URL, apiKey: null, callerOptions: { maxRetries: 0 } });
const failed = [];
let parts = 0;

async function part(name, run) {
  parts += 1;
  try {
    await run();
  } catch (error) {
    failed.push({ name, error: String(error?.stack ?? error) });
  }
}

const open = (assistantId, threadId = randomUUID()) =>
  (isSocket ? bare : client).threads.stream(threadId, {
    assistantId,
    transport,
    webSocketFactory: (url) => new WebSocket(url, { headers: { "x-api-key": token } }),
  });
const said = (text, more = {}) => ({ messages: [{ type: "human", content: text }], ...more });

await part("a run", async () => {
  const thread = open("support");
  const messages = thread.messages;
  const started = await thread.run.start({ input: said("hello") });
  assert.ok(started.run_id);
  const values = await thread.output;
  assert.equal(values.messages.at(-1).content, "You said hello");
  assert.deepEqual(values.log, ["planned plainly", "replied"]);
  const texts = [];
  for await (const each of messages) texts.push(await each.text);
  assert.ok(texts.includes("You said hello"), JSON.stringify(texts));
  await thread.close();
});

await part("two runs, one after the other", async () => {
  const thread = open("support");
  await thread.run.start({ input: said("one") });
  await thread.output;
  const seen = [];
  const events = await thread.subscribe({ channels: ["lifecycle"] });
  await thread.run.start({ input: said("two") });
  for await (const each of events) {
    seen.push(each);
    if (seen.filter((one) => one.params.data.event === "completed").length >= 1 && seen.length >= 2) break;
  }
  const numbers = seen.map((each) => each.seq);
  assert.deepEqual(numbers, [...numbers].sort((a, b) => a - b));
  const state = await client.threads.getState(thread.threadId);
  assert.equal(state.values.messages.length >= 2, true);
  await thread.close();
});

await part("a question in a subgraph", async () => {
  const thread = open("nested");
  await thread.run.start({ input: said("order") });
  while (!thread.interrupts.length) await new Promise((resolve) => setTimeout(resolve, 20));
  const [asked] = thread.interrupts;
  assert.deepEqual(asked.payload, { question: "Who approves?" });
  assert.ok(asked.namespace[0].startsWith("inner:"));
  await thread.input.respond({ interrupt_id: asked.interruptId, namespace: asked.namespace, response: "Ada" });
  let state;
  do {
    await new Promise((resolve) => setTimeout(resolve, 50));
    state = await client.threads.getState(thread.threadId);
  } while (state.next.length);
  assert.ok(state.values.log.includes("approved by Ada"), JSON.stringify(state.values));
  await thread.close();
});

await part("chosen channels", async () => {
  const { thread_id: id } = await client.threads.create();
  const thread = open("support", id);
  const chosen = await thread.subscribe({ channels: ["custom", "updates", "checkpoints"] });
  await thread.run.start({ input: said("hi") });
  await thread.output;
  const methods = new Set();
  for await (const each of chosen) methods.add(each.method);
  assert.deepEqual([...methods].sort(), ["checkpoints", "custom", "updates"]);
  await thread.close();
});

await part("refusals", async () => {
  const wrong = open("support");
  await assert.rejects(wrong.run.start({ input: said("hi"), config: { unknown: 1 } }), /unknown/);
  await wrong.close();
  const thread = open("support");
  await thread.run.start({ input: said("hi") });
  await thread.output;
  await assert.rejects(
    thread.input.respond({ interrupt_id: "0".repeat(32), namespace: [], response: 1 }),
    /asks nothing/,
  );
  await assert.rejects(thread.input.inject({ namespace: [], message: { role: "user", content: "x" } }), /next run/);
  const found = await thread.state.get({ namespace: [] });
  assert.equal(found.values.messages.length, 2);
  const { checkpoints } = await thread.state.listCheckpoints({ namespace: [] });
  assert.ok(checkpoints.length >= 3);
  assert.ok((await thread.state.fork({ checkpoint_id: checkpoints[1].id })).run_id);
  await thread.close();
});

console.log(JSON.stringify({ parts, failed }));
process.exit(0);
