/** Tools for the Platform and Sandbox APIs that an agent's config grants. */
import { hasScope } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { Tool, ToolResult, ToolCall, ToolPolicy, Tools, ToolUser } from "../tools/tool.ts";
import type { WorkerAccess } from "./access.ts";
import { type Operation, UnfitArguments } from "./workers.ts";

export async function workerTools(_app: App, { config, access }: ToolUser): Promise<Tools> {
  const scopes = config.platform?.scopes ?? [];
  if (!access || scopes.length === 0) return { tools: [], unavailable: [] };
  const granted = access.operations.filter(({ scope }) => hasScope({ scopes }, scope));
  return { tools: granted.map((operation) => toolOf(operation, config, access)), unavailable: [] };
}

function toolOf(operation: Operation, config: AgentConfig, access: WorkerAccess): Tool {
  const { name, description, parameters, isRead } = operation;
  return {
    name,
    description,
    parameters,
    toolsetId: null,
    policy: policyOf(config, isRead),
    isRepeatable: isRead,
    call: (call) => carryOut(operation, access, call),
  };
}

/** Returns the config's policy for these tools. By default, writes need an approval. */
function policyOf({ platform, approvals }: AgentConfig, isRead: boolean): ToolPolicy {
  if (platform?.policy !== undefined) return platform.policy;
  return approvals.default === "allow" && !isRead ? "ask" : approvals.default;
}

/** Maximum size of an operation's response that the model gets. */
const answerMaxBytes = 64 * 1024;

async function carryOut(operation: Operation, access: WorkerAccess, call: ToolCall): Promise<ToolResult> {
  const timeout = AbortSignal.timeout(call.timeoutMs);
  try {
    const { status, text } = await access.call(operation.request(call.values), {
      headers: { ...call.headers, ...(operation.isRead ? {} : { "idempotency-key": call.id }) },
      signal: AbortSignal.any([call.signal, timeout]),
    });
    const answer = limitText(text === "" ? "Done." : text);
    return status < 400 ? { isOk: true, text: answer } : { isOk: false, text: `HTTP ${status}: ${answer}` };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted)
      return {
        isOk: false,
        text: `No response within ${call.timeoutMs / 1000} s. Read the current state before you try again.`,
      };
    if (error instanceof UnfitArguments) return { isOk: false, text: error.message };
    throw error;
  }
}

function limitText(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= answerMaxBytes) return text;
  // The decoder drops a character that the limit splits.
  const head = new TextDecoder().decode(bytes.subarray(0, answerMaxBytes), { stream: true });
  return `${head}\n[cut off after ${answerMaxBytes} bytes]`;
}
