/** The memory tools. Every config with memory has these tools, whatever its toolsets. */
import type { App } from "#app.ts";
import { noEndUser } from "../end-users/id.ts";
import { storableText } from "../storable.ts";
import type { Tool, ToolResult, ToolCall, Tools, ToolUser } from "../tools/tool.ts";
import { keyPattern } from "./schema.ts";
import { deleteFacts, type Owner, saveFact, searchFacts } from "./store.ts";

/** Maximum size of all facts of one end user. A single response must contain all of these facts. */
const ownerMaxMiB = 4;
const wordsMax = 10;
const foundMax = 20;
/** Maximum size of a search result. */
const foundMaxBytes = 64 * 1024;

export async function memoryTools(app: App, user: ToolUser): Promise<Tools> {
  const { memory } = user.config;
  if (!memory?.enabled) return { tools: [], unavailable: [] };
  const owner = { agentId: user.agentId, endUserId: user.endUserId ?? noEndUser };
  return {
    tools: [
      {
        ...common,
        name: "memory_save",
        description:
          "Remembers a fact for later conversations. A key that is there already gets the new value. Save what will matter later, in few words; save no passwords or keys.",
        parameters: object({ key, value: { type: "string", minLength: 1 } }),
        call: (call) => save(app, user, owner, memory, call),
      },
      {
        ...common,
        name: "memory_delete",
        description: "Forgets the fact with this key.",
        parameters: object({ key }),
        call: (call) => forget(owner, call),
      },
      {
        ...common,
        name: "memory_search",
        description: "Finds remembered facts whose key or value holds some of the words.",
        parameters: object({ query: { type: "string", minLength: 1, maxLength: 1000 } }),
        call: (call) => search(app, owner, call),
      },
    ],
    unavailable: [],
  };
}

const common: Pick<Tool, "toolsetId" | "policy" | "isRepeatable"> = {
  toolsetId: null,
  policy: "allow",
  isRepeatable: true,
};

const key = { type: "string", pattern: keyPattern };
const object = (properties: Record<string, unknown>) => ({
  type: "object",
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
});

/** Error that rolls back its transaction and carries the text for the model. */
class MemoryUnchanged extends Error {
  readonly isOk: boolean;

  constructor(text: string, { isOk }: { isOk: boolean }) {
    super(text);
    this.isOk = isOk;
  }
}

async function changing(work: Promise<void>, text: string): Promise<ToolResult> {
  try {
    await work;
    return { isOk: true, text };
  } catch (error) {
    if (error instanceof MemoryUnchanged) return { isOk: error.isOk, text: error.message };
    throw error;
  }
}

async function save(
  app: App,
  { runId }: ToolUser,
  owner: Owner,
  limits: { max_entries: number; max_value_bytes: number },
  call: ToolCall,
): Promise<ToolResult> {
  const { key: name, value: said } = call.values as { key: string; value: string };
  const value = storableText(said);
  const bytes = Buffer.byteLength(value);
  if (bytes > limits.max_value_bytes)
    return {
      isOk: false,
      text: `The value has ${bytes} bytes, and at most ${limits.max_value_bytes} are kept.`,
    };
  const allowed = { entries: limits.max_entries, bytes: ownerMaxMiB * 1024 ** 2 };
  const work = call.emitWith("memory.updated", { key: name, op: "save" }, async (tx) => {
    const fact = { key: name, value, runId, at: app.clock.now() };
    if (await saveFact(tx, owner, fact, allowed)) return;
    throw new MemoryUnchanged(
      `The memory is full: at most ${allowed.entries} facts and ${ownerMaxMiB} MiB. Delete what matters least first.`,
      { isOk: false },
    );
  });
  return changing(work, "Saved.");
}

async function forget(owner: Owner, call: ToolCall): Promise<ToolResult> {
  const { key: name } = call.values as { key: string };
  const work = call.emitWith("memory.updated", { key: name, op: "delete" }, async (tx) => {
    // A missing fact counts as deleted: after a crash, a repeated call finds that the fact is deleted already.
    if ((await deleteFacts(tx, owner, name)) === 0)
      throw new MemoryUnchanged("There is no such fact (any more).", { isOk: true });
  });
  return changing(work, "Forgotten.");
}

async function search(app: App, owner: Owner, call: ToolCall): Promise<ToolResult> {
  const { query } = call.values as { query: string };
  const words = [...new Set(query.toLowerCase().match(/[\p{L}\p{N}]+/gu))].slice(0, wordsMax);
  const facts = words.length === 0 ? [] : await searchFacts(app.db, owner, words, foundMax);
  const lines: string[] = [];
  let bytes = 0;
  for (const { key: name, value } of facts) {
    const line = `${name}: ${JSON.stringify(value)}`;
    bytes += Buffer.byteLength(line);
    if (bytes > foundMaxBytes && lines.length > 0) break;
    lines.push(line);
  }
  return {
    isOk: true,
    text: lines.length === 0 ? "Nothing is remembered with these words." : lines.join("\n"),
  };
}
