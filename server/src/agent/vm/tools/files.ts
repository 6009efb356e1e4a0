/** `read_file` and `write_file`: text files of the session's machine. */
import { Buffer } from "node:buffer";
import { explain } from "#sandbox/sandboxes/sandboxes.ts";
import { absolute, writeFile } from "#sandbox/files/files.ts";
import { defaultMode } from "#sandbox/files/limits.ts";
import { Path } from "#sandbox/files/schema.ts";
import { openDownload } from "#sandbox/files/transfer.ts";
import type { ToolResult } from "#agent/tools/tool.ts";
import type { Work } from "./machine-call.ts";

const readMaxBytes = 64 * 1024;

export const readFile: Work = async (app, { actor, sandboxId }, { values }) => {
  const path = Path.safeParse(values["path"]);
  if (!path.success) return unfit(path.error);
  const { stat, content } = await openDownload(app, sandboxId, absolute(path.data), ({ sizeBytes }) =>
    sizeBytes > readMaxBytes ? { first: 0, last: readMaxBytes - 1 } : undefined,
  );
  try {
    const bytes = Buffer.concat(await Array.fromAsync(content as AsyncIterable<Buffer>));
    return toText(bytes, stat.sizeBytes);
  } catch (error) {
    throw await explain(app, actor, sandboxId, error);
  }
};

function toText(bytes: Buffer, sizeBytes: number): ToolResult {
  const isCut = sizeBytes > bytes.length;
  try {
    // The limit may split a character. A byte order mark is kept, because the model may write the text back.
    const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const text = decoder.decode(bytes, { stream: isCut });
    if (!text.includes("\0"))
      return {
        isOk: true,
        text: isCut ? `${text}\n[cut off after ${bytes.length} of ${sizeBytes} bytes]` : text,
      };
  } catch {
    // The code below reports invalid UTF-8.
  }
  return { isOk: false, text: `The file is not text: ${sizeBytes} bytes. Use a command to inspect it.` };
}

export const writeTextFile: Work = async (app, { actor, sandboxId }, { values }) => {
  const path = Path.safeParse(values["path"]);
  if (!path.success) return unfit(path.error);
  const content = Buffer.from(String(values["content"])).toString("base64");
  const written = await writeFile(app, actor, sandboxId, { path: path.data, content, mode: defaultMode });
  return { isOk: true, text: `Wrote ${written.bytes_written} bytes to ${written.path}.` };
};

function unfit({ issues }: { issues: readonly { message: string }[] }): ToolResult {
  return { isOk: false, text: `path ${issues[0]?.message ?? "is not valid"}` };
}
