/** The AI SDK's client with an agent. `useChat` uses the same client. */
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport, type DynamicToolUIPart, type UIMessage, uiMessageChunkSchema } from "ai";
import { expect, test } from "vitest";
import { agentHost, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";

type Message = UIMessage<{ run_id: string; session_id: string }>;

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const authorization = `Bearer ${owner.token}`;
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: ["look", "sell"].map((name) => ({
    name,
    description: "",
    method: "POST",
    path: `/${name}`,
    parameters: { type: "object" },
  })),
});
const config = {
  ...(await modelConfig(owner, model.url)),
  toolsets: [{ toolset_id: toolset.id, policy: "ask", tools: { look: { policy: "allow" } } }],
};
await owner.post("/v1/agents", { name: "clerk", config });

/** Creates a conversation in the AI SDK's client. With `runId`, the conversation reconnects to that run. */
function chat(runId?: string): Chat<Message> {
  const agents = `${host.baseUrl}/v1/agents`;
  return new Chat<Message>({
    transport: new DefaultChatTransport<Message>({
      api: `${agents}/clerk/invoke?format=ui`,
      headers: { authorization },
      prepareSendMessagesRequest: ({ messages }) => ({
        headers: { authorization },
        body: {
          input: messages
            .at(-1)
            ?.parts.map((part) => (part.type === "text" ? part.text : ""))
            .join(""),
          stream: true,
          session_id: messages.findLast(({ metadata }) => metadata)?.metadata?.session_id,
        },
      }),
      prepareReconnectToStreamRequest: () => ({
        api: `${agents}/runs/${runId}/stream?format=ui`,
        headers: { authorization },
      }),
    }),
  });
}

const toolsIn = (talk: Chat<Message>) =>
  (talk.lastMessage?.parts ?? []).filter((part): part is DynamicToolUIPart => part.type === "dynamic-tool");
const call = (name: string) => ({ name: `shop__${name}`, arguments: '{"id":"7"}' });

async function decide(talk: Chat<Message>, decision: string): Promise<void> {
  await expect.poll(() => toolsIn(talk).at(-1)?.state).toBe("approval-requested");
  const { run_id } = talk.lastMessage!.metadata!;
  const path = `/v1/agents/runs/${run_id}/approvals/${toolsIn(talk).at(-1)!.approval!.id}`;
  expect((await owner.post(path, { decision })).status).toBe(200);
}

test("a chat shows text, tools and an approval request, and continues after the decision", async () => {
  model.script([
    { reasoning: ["Let me see."], text: ["Looking."], calls: [call("look"), call("sell")] },
    { text: ["Sold."] },
  ]);
  const talk = chat();
  const sent = talk.sendMessage({ text: "Sell it." });
  await decide(talk, "approve");
  await sent;
  expect([talk.status, talk.error]).toEqual(["ready", undefined]);
  expect(talk.lastMessage).toMatchObject({
    role: "assistant",
    parts: [
      { type: "step-start" },
      { type: "reasoning", text: "Let me see.", state: "done" },
      { type: "text", text: "Looking.", state: "done" },
      { type: "dynamic-tool", toolName: "shop__look", state: "output-available", output: '{"ok":true}' },
      {
        type: "dynamic-tool",
        toolName: "shop__sell",
        state: "output-available",
        input: { id: "7" },
        output: '{"ok":true}',
        approval: { id: expect.stringMatching(/^apr_/), approved: true },
      },
      { type: "step-start" },
      { type: "text", text: "Sold.", state: "done" },
    ],
  });
  // The next input continues the same session.
  model.script([{ text: ["You are welcome."] }]);
  await talk.sendMessage({ text: "Thanks." });
  expect(talk.lastMessage?.metadata?.session_id).toBe(talk.messages[1]?.metadata?.session_id);
  expect(model.asked[0].messages.at(0)).toMatchObject({ role: "user", content: "Sell it." });
});

test("a chat shows several approvals in separate states, with the arguments that a person changed", async () => {
  model.script([{ calls: [call("sell"), call("sell"), call("look"), call("sell")] }, { text: ["Done."] }]);
  const talk = chat();
  const sent = talk.sendMessage({ text: "Sell them." });
  const states = () => toolsIn(talk).map(({ state }) => state);
  await expect
    .poll(states)
    .toEqual(["approval-requested", "approval-requested", "output-available", "approval-requested"]);
  const { run_id } = talk.lastMessage!.metadata!;
  const send = async (place: number, body: object) => {
    const path = `/v1/agents/runs/${run_id}/approvals/${toolsIn(talk)[place]!.approval!.id}`;
    expect((await owner.post(path, body)).status).toBe(200);
  };
  await send(3, { decision: "deny", reason: "Too many." });
  await send(1, { decision: "approve", arguments: { id: "8" } });
  await expect
    .poll(states)
    .toEqual(["approval-requested", "approval-responded", "output-available", "approval-responded"]);
  await send(0, { decision: "approve" });
  await sent;
  expect([talk.status, talk.error]).toEqual(["ready", undefined]);
  expect(toolsIn(talk)).toMatchObject([
    { state: "output-available", input: { id: "7" }, approval: { approved: true } },
    { state: "output-available", input: { id: "8" }, approval: { approved: true } },
    { state: "output-available", input: { id: "7" } },
    { state: "output-denied", approval: { approved: false, reason: "Too many." } },
  ]);
});

test("replays the whole run to a chat that reconnects, and shows a denied call as denied", async () => {
  model.script([{ calls: [call("sell")] }, { text: ["As you like."] }]);
  const { json } = await owner.post("/v1/agents/clerk/invoke", { input: "Sell it." });
  const talk = chat(json.run_id);
  const resumed = talk.resumeStream();
  await decide(talk, "deny");
  await resumed;
  expect(talk.error).toBeUndefined();
  expect(toolsIn(talk)).toMatchObject([{ state: "output-denied", approval: { approved: false } }]);
  expect(talk.lastMessage?.parts.at(-1)).toMatchObject({ type: "text", text: "As you like." });
  const url = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream?format=ui`;
  const { frames } = await readFrames(url, { token: owner.token });
  const schema = uiMessageChunkSchema();
  for (const { data } of frames.slice(0, -1))
    expect(await schema.validate!(data), JSON.stringify(data)).toMatchObject({ success: true });
});

test("ends a chat with an error if its run is cancelled while it waits for approval", async () => {
  model.script([{ calls: [call("sell")] }]);
  const talk = chat();
  const sent = talk.sendMessage({ text: "Sell it." });
  await expect.poll(() => toolsIn(talk).at(-1)?.state).toBe("approval-requested");
  await owner.post(`/v1/agents/runs/${talk.lastMessage!.metadata!.run_id}/cancel`);
  await sent;
  expect(talk.error?.message).toBe("The run was cancelled.");
  expect(toolsIn(talk)).toMatchObject([{ approval: { approved: false, reason: "cancelled" } }]);
});
