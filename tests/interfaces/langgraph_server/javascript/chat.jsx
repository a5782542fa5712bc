// A chat with `useStream`: messages and calls of tools as they come, a question to answer, and messages to edit.
import { useStream } from "@langchain/react";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);

function Chat() {
  const [threadId, setThreadId] = useState(query.get("thread"));
  const stream = useStream({
    apiUrl: location.origin,
    apiKey: sessionStorage.getItem("token"),
    assistantId: "chat",
    threadId,
    onThreadId: (id) => {
      setThreadId(id);
      history.replaceState(null, "", `?thread=${id}`);
    },
  });
  const [text, setText] = useState("");
  const send = (content, options) => stream.submit({ messages: [{ type: "human", content }] }, options);

  async function edit(message) {
    const states = await stream.client.threads.getHistory(threadId, { limit: 100 });
    const has = (state) => state.values.messages?.some((each) => each.id === message.id);
    const before = states.slice(states.findLastIndex(has) + 1)[0];
    send(`${message.text} (edited)`, { forkFrom: before.checkpoint.checkpoint_id });
  }

  return (
    <main>
      <ol>
        {stream.messages.map((message) => (
          <li key={message.id} data-type={message.getType()}>
            <span>{message.text}</span>
            {message.getType() === "human" && <button onClick={() => edit(message)}>Edit</button>}
          </li>
        ))}
      </ol>
      <ul>
        {stream.toolCalls.map((call, index) => (
          <li key={index}>{call.name ?? call.call?.name}</li>
        ))}
      </ul>
      {stream.interrupt && (
        <button id="approve" onClick={() => stream.respond({ approved: true })}>
          {stream.interrupt.value.question}
        </button>
      )}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          send(text);
          setText("");
        }}
      >
        <input value={text} onChange={(event) => setText(event.target.value)} aria-label="Message" />
      </form>
      <output>{stream.error ? String(stream.error.message ?? stream.error) : stream.isLoading ? "busy" : "idle"}</output>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat />);
