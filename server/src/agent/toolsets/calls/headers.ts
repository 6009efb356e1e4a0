/** Encrypts the header values of HTTP tools in one column. `http_tools` contains a hint instead of each value. */
import type { App } from "#app.ts";
import { hintOf, isMask, isMaskOf } from "#lib/secret-hint.ts";
import { invalidField } from "#agent/errors.ts";
import type { HttpTool } from "../tools/tool-schema.ts";
import { changeToolset, lockNextUnsealed, type ToolsetRow } from "../store.ts";

type Needs = Pick<App, "secrets">;
type Headers = Readonly<Record<string, string>>;

interface ToolColumns {
  http_tools: string;
  http_headers_sealed: Buffer | null;
}

/** Headers of each tool, by the tool's name. */
export type ToolHeaders = ReadonlyMap<string, Headers>;

export function openHeaders(
  { secrets }: Needs,
  row: Pick<ToolsetRow, "id" | "http_headers_sealed">,
): ToolHeaders {
  if (row.http_headers_sealed === null) return new Map();
  const text = secrets.open(row.http_headers_sealed, place(row.id)).toString("utf8");
  return new Map(JSON.parse(text) as [string, Headers][]);
}

/**
 * Returns the columns of these tools. A mask keeps the stored value of the same tool and header. A move to another
 * origin removes the stored values, and drops a header whose value is a mask.
 */
export function toolColumns(
  app: Needs,
  id: string,
  tools: readonly HttpTool[],
  { stored = new Map(), isMoving = false }: { stored?: ToolHeaders; isMoving?: boolean } = {},
): ToolColumns {
  const resolved = tools.map(({ headers = {}, ...tool }, index) => {
    const values = Object.entries(headers).flatMap(([name, given]): [string, string][] => {
      if (isMoving && isMask(given)) return [];
      return [[name, valueOf(given, valueIn(stored.get(tool.name), name), [index, name])]];
    });
    return { ...tool, headers: Object.fromEntries(values) };
  });
  return sealedColumns(app, id, resolved);
}

/** Returns the tools without their headers. */
export function withoutHeaders(tools: readonly HttpTool[]): HttpTool[] {
  return tools.map((tool) => {
    const bare = { ...tool };
    delete bare.headers;
    return bare;
  });
}

/**
 * Encrypts plain-text values in rows of earlier versions. Each row has its own transaction, so that the next start
 * continues after an interruption.
 */
export async function sealClearHeaders(app: Pick<App, "db" | "secrets">): Promise<void> {
  for (let after: string | undefined = ""; after !== undefined;) {
    const last: string = after;
    after = await app.db.transaction().execute(async (tx) => {
      const row = await lockNextUnsealed(tx, last);
      if (!row) return undefined;
      await changeToolset(tx, row.id, sealedColumns(app, row.id, row.http_tools));
      return row.id;
    });
  }
}

function sealedColumns({ secrets }: Needs, id: string, tools: readonly HttpTool[]): ToolColumns {
  const values = tools.flatMap(({ name, headers = {} }): [string, Headers][] =>
    Object.keys(headers).length === 0 ? [] : [[name, headers]],
  );
  const shown = tools.map(({ headers = {}, ...tool }) => {
    const hints = Object.entries(headers).map(([name, value]) => [name, hintOf(value)]);
    return hints.length === 0 ? tool : { ...tool, headers: Object.fromEntries(hints) };
  });
  return {
    http_tools: JSON.stringify(shown),
    http_headers_sealed: values.length === 0 ? null : secrets.seal(JSON.stringify(values), place(id)),
  };
}

function valueOf(given: string, stored: string | undefined, [index, name]: [number, string]): string {
  if (stored !== undefined && isMaskOf(given, stored)) return stored;
  if (isMask(given))
    throw invalidField(
      ["http_tools", index, "headers", name],
      "is a mask without a stored value; send the value",
    );
  return given;
}

/** Returns the value of a header. Header names are case-insensitive (RFC 9110, section 5.1). */
function valueIn(headers: Headers | undefined, name: string): string | undefined {
  const lowered = name.toLowerCase();
  return Object.entries(headers ?? {}).find(([one]) => one.toLowerCase() === lowered)?.[1];
}

function place(id: string): string {
  return `agent_toolsets:${id}:http_headers`;
}
