/**
 * `run_code`: runs a cell in the machine's code interpreter. Variables persist between calls. The cell is interrupted
 * when its run ends.
 */
import { type CodeEvent, startStreamed } from "#sandbox/code/code.ts";
import { interpreterUnavailable } from "#sandbox/code/errors.ts";
import { Code, type CodeError, type CodeItem, type CodeSummary } from "#sandbox/code/schema.ts";
import { DomainError } from "#lib/errors.ts";
import { base64Bytes, type PicturePart, resultOf, stepPictures, toPicture } from "#agent/tools/pictures.ts";
import type { ToolResult } from "#agent/tools/tool.ts";
import type { Work } from "./machine-call.ts";
import { HeadAndTail } from "./head-and-tail.ts";
import { textOf } from "./exec.ts";

/** Maximum size of each stream and of the results, so that a whole tool result stays below 64 KiB. */
const streamMaxBytes = 16 * 1024;
const resultsMaxBytes = 28 * 1024;

const noInterpreter =
  "The machine's template has no code interpreter: use exec. The agent's owner can choose the " +
  "template code-interpreter.";

export const runCode: Work = async (app, { actor, sandboxId }, call) => {
  const input = Code.safeParse({
    code: call.values["code"],
    language: call.values["language"],
    timeout_seconds: Math.min(call.leftSeconds, 3600),
    stream: true,
  });
  if (!input.success) return { isOk: false, text: input.error.issues[0]?.message ?? "The code is invalid." };
  try {
    const { events, stop } = await startStreamed(app, actor, sandboxId, input.data, call.signal);
    call.signal.addEventListener("abort", stop, { once: true });
    if (call.signal.aborted) stop();
    try {
      return await collectResult(events, input.data.timeout_seconds);
    } finally {
      call.signal.removeEventListener("abort", stop);
    }
  } catch (error) {
    if (error instanceof DomainError && error.code === interpreterUnavailable.code)
      return { isOk: false, text: noInterpreter };
    throw error;
  }
};

async function collectResult(events: AsyncIterable<CodeEvent>, seconds: number): Promise<ToolResult> {
  const said = { stdout: new HeadAndTail(streamMaxBytes), stderr: new HeadAndTail(streamMaxBytes) };
  const results = new HeadAndTail(resultsMaxBytes);
  const addResult = (text: string) => results.add(Buffer.from(`${text}\n`));
  let first = "done";
  let isOk = true;
  const pictures: PicturePart[] = [];
  for await (const { event, data } of events) {
    if (event === "stream") {
      const { stream, text } = data as { stream: "stdout" | "stderr"; text: string };
      said[stream].add(Buffer.from(text));
    } else if (event === "result") {
      const item = data as CodeItem;
      const picture = pictures.length < stepPictures.count ? pictureOf(item) : undefined;
      if (picture) pictures.push(picture);
      addResult(picture ? (item.text ?? "a picture") : toText(item));
    } else if (event === "error") {
      const { name, value, traceback } = data as CodeError;
      first = `raised ${name}`;
      addResult(traceback.length > 0 ? traceback.join("\n") : `${name}: ${value}`);
    } else {
      const { interrupted, restarted } = data as CodeSummary;
      isOk = !interrupted;
      if (interrupted) first = `The code was interrupted after ${seconds} s.`;
      if (restarted) first += "; the interpreter restarted, so earlier variables are lost";
    }
  }
  const shown = results.isEmpty ? first : `${first}\nresult:\n${results.text().trimEnd()}`;
  return { isOk, ...resultOf([{ type: "text", text: textOf(shown, said) }, ...pictures], (text) => text) };
}

function pictureOf({ png, jpeg }: CodeItem): PicturePart | undefined {
  const data = png ?? jpeg;
  return data === null ? undefined : toPicture(Buffer.from(data, "base64"));
}

/** Returns the text form of a result. */
function toText({ text, html, png, json }: CodeItem): string {
  if (text !== null && png === null) return text;
  if (png !== null) return `${text ?? ""}[a picture, ${base64Bytes(png)} bytes]`;
  return html ?? JSON.stringify(json);
}
