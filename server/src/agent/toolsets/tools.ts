/** The tools of toolsets: which of them a config lets an agent have, and one call of one. */
import type { App } from "#app.ts";
import type { Tool, ToolAnswer, ToolCall, Tools, ToolUser } from "../tools/tool.ts";
import { requestOf, UnfitArguments } from "./request.ts";
import type { HttpTool } from "./schema.ts";
import { openSecret } from "./secrets.ts";
import { type ToolsetRow, toolsetsByIds } from "./store.ts";

export async function toolsetTools(app: App, { workspaceId, config }: ToolUser): Promise<Tools> {
  const ids = config.toolsets.map(({ toolset_id }) => toolset_id);
  const rows = ids.length === 0 ? [] : await toolsetsByIds(app.db, workspaceId, ids);
  const known = new Map(rows.map((row) => [row.id, row]));
  const tools: Tool[] = [];
  const unavailable: Tools["unavailable"] = [];
  for (const use of config.toolsets) {
    const toolset = known.get(use.toolset_id);
    if (!toolset) {
      unavailable.push({ id: use.toolset_id, isRequired: use.required, why: "it is not there any more" });
      continue;
    }
    for (const http of toolset.http_tools) {
      if (!use.allow.includes("*") && !use.allow.includes(http.name)) continue;
      const override = toolset.tool_overrides[http.name];
      const policy =
        use.tools?.[http.name]?.policy ?? use.policy ?? override?.policy ?? config.approvals.default;
      tools.push({
        name: `${toolset.name}__${override?.name ?? http.name}`,
        description: override?.description ?? http.description,
        parameters: http.parameters,
        toolsetId: toolset.id,
        policy,
        isRepeatable: http.method === "GET",
        call: (call) => callHttp(app, toolset, http, call),
      });
    }
  }
  return { tools, unavailable };
}

/** Of what a tool answers. */
const resultMaxBytes = 64 * 1024;

async function callHttp(
  app: Pick<App, "secrets">,
  toolset: ToolsetRow,
  http: HttpTool,
  call: ToolCall,
): Promise<ToolAnswer> {
  const secret = openSecret(app, toolset);
  const timeout = AbortSignal.timeout(call.timeoutMs);
  try {
    const request = requestOf(
      http,
      { url: toolset.url, headers: { ...authOf(toolset, secret), "idempotency-key": call.id } },
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
