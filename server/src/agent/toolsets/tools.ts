/** The tools that a config gives an agent: which there are, what a model is told of them, and one call of one. */
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { Fetch } from "../models/fetch.ts";
import { requestOf, UnfitArguments } from "./request.ts";
import type { HttpTool } from "./schema.ts";
import { type ToolsetRow, toolsetsByIds } from "./store.ts";
import { openSecret } from "./toolsets.ts";

export interface Tool {
  /** As the model calls it: `{toolset}__{tool}`. */
  name: string;
  description: string;
  parameters: Record<string, unknown>;
  toolsetId: string;
  policy: "allow" | "deny";
  /** Asking twice changes no more than asking once. */
  isReadOnly: boolean;
  toolset: ToolsetRow;
  http: HttpTool;
}

export interface Tools {
  /** By the name a model calls it. */
  tools: Map<string, Tool>;
  /** Toolsets that the config names and that are gone. */
  missing: { id: string; isRequired: boolean }[];
}

export async function toolsOf(db: Db, workspaceId: string, config: AgentConfig): Promise<Tools> {
  const ids = config.toolsets.map(({ toolset_id }) => toolset_id);
  const rows = ids.length === 0 ? [] : await toolsetsByIds(db, workspaceId, ids);
  const known = new Map(rows.map((row) => [row.id, row]));
  const found: Tools = { tools: new Map(), missing: [] };
  for (const use of config.toolsets) {
    const toolset = known.get(use.toolset_id);
    if (!toolset) {
      found.missing.push({ id: use.toolset_id, isRequired: use.required });
      continue;
    }
    for (const http of toolset.http_tools) {
      if (!use.allow.includes("*") && !use.allow.includes(http.name)) continue;
      const override = toolset.tool_overrides[http.name];
      const policy =
        use.tools?.[http.name]?.policy ?? use.policy ?? override?.policy ?? config.approvals.default;
      const name = `${toolset.name}__${override?.name ?? http.name}`;
      found.tools.set(name, {
        name,
        description: override?.description ?? http.description,
        parameters: http.parameters,
        toolsetId: toolset.id,
        // Whoever would have to be asked can't be yet: what is to be asked for is not done.
        policy: policy === "allow" ? "allow" : "deny",
        isReadOnly: http.method === "GET",
        toolset,
        http,
      });
    }
  }
  return found;
}

/** Of what a tool answers. */
const resultMaxBytes = 64 * 1024;

export interface ToolAnswer {
  isOk: boolean;
  /** What the model is told. */
  text: string;
}

/** Resolves also where the tool failed; throws what the signal was aborted with, where that is not the time-out. */
export async function callTool(
  app: Pick<App, "secrets">,
  tool: Tool,
  call: { id: string; values: Record<string, unknown>; timeoutMs: number; signal: AbortSignal; fetch: Fetch },
): Promise<ToolAnswer> {
  const secret = openSecret(app, tool.toolset);
  const timeout = AbortSignal.timeout(call.timeoutMs);
  try {
    const request = requestOf(
      tool.http,
      { url: tool.toolset.url, headers: { ...authOf(tool.toolset, secret), "idempotency-key": call.id } },
      call.values,
    );
    const response = await call.fetch(request.url, {
      method: request.method,
      headers: request.headers,
      ...(request.body === undefined ? {} : { body: request.body }),
      signal: AbortSignal.any([call.signal, timeout]),
    });
    const text = hide(await readText(response), secret);
    if (response.ok) return { isOk: true, text };
    return { isOk: false, text: `HTTP ${response.status}: ${text}` };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted)
      return { isOk: false, text: `The tool did not answer within ${call.timeoutMs / 1000} s.` };
    const { message } = error as Error;
    const why = error instanceof UnfitArguments ? message : `The tool can't be reached: ${message}`;
    return { isOk: false, text: hide(why.slice(0, 300), secret) };
  }
}

function authOf({ auth_header_name }: ToolsetRow, secret: string | undefined): Record<string, string> {
  if (secret === undefined) return {};
  return auth_header_name === null
    ? { authorization: `Bearer ${secret}` }
    : { [auth_header_name.toLowerCase()]: secret };
}

async function readText(response: Response): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response.body ?? []) {
    pieces.push(piece as Uint8Array);
    bytes += (piece as Uint8Array).length;
    if (bytes > resultMaxBytes) break;
  }
  const text = new TextDecoder()
    .decode(Buffer.concat(pieces).subarray(0, resultMaxBytes))
    .replaceAll("\0", "\uFFFD");
  return bytes > resultMaxBytes ? `${text}\n[cut off after ${resultMaxBytes} bytes]` : text;
}

/** A server that repeats what it was sent must not get the secret to the model, or into the log. */
function hide(text: string, secret: string | undefined): string {
  return secret !== undefined && secret.length >= 4 ? text.replaceAll(secret, "[secret]") : text;
}
