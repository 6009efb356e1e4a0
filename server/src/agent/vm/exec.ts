/** `exec`: a command, with its exit code and the ends of what it said. It ends with its run. */
import { DomainError } from "#lib/errors.ts";
import { startStreamed } from "#sandbox/exec/exec.ts";
import { Exec, type ExecFrame } from "#sandbox/exec/schema.ts";
import { sandboxNotFound, sandboxTerminated } from "#sandbox/sandboxes/errors.ts";
import type { ToolAnswer } from "../tools/tool.ts";
import type { MachineCall, Work } from "./call.ts";
import { Ends } from "./ends.ts";

/** Of each stream: with what is said around them a result stays below 64 KiB. */
const streamMaxBytes = 30 * 1024;

export const exec: Work = async (app, { actor, sandboxId }, call) => {
  const input = Exec.safeParse({
    command: call.values["command"],
    timeout_seconds: secondsOf(call),
    stream: true,
  });
  if (!input.success) return { isOk: false, text: input.error.issues[0]?.message ?? "That is no command." };
  const { frames, stop } = await startStreamed(app, actor, sandboxId, input.data);
  call.signal.addEventListener("abort", stop, { once: true });
  if (call.signal.aborted) stop();
  const said = { stdout: new Ends(streamMaxBytes), stderr: new Ends(streamMaxBytes) };
  try {
    for await (const frame of frames) {
      if (frame.kind === "exec_chunk") said[frame.stream].add(Buffer.from(frame.data, "base64"));
      else if (frame.kind !== "exec_started") return answerOf(frame, said, input.data.timeout_seconds);
    }
  } finally {
    call.signal.removeEventListener("abort", stop);
  }
  return { isOk: false, text: "The command's end was not heard." };
};

/** Its own wish within what is left of the call. */
function secondsOf({ values, leftSeconds }: MachineCall): number {
  const wish = values["timeout_seconds"];
  return Math.min(typeof wish === "number" ? wish : leftSeconds, leftSeconds, 3600);
}

function answerOf(
  frame: Extract<ExecFrame, { kind: "exec_exited" | "error" }>,
  said: { stdout: Ends; stderr: Ends },
  seconds: number,
): ToolAnswer {
  // The model can use less memory in its next call.
  const why = frame.killed_by === "out_of_memory" ? " (the machine ran out of memory)" : "";
  if (frame.kind === "exec_exited")
    return { isOk: true, text: textOf(`exit code: ${frame.code}${why}`, said) };
  const gone = [sandboxTerminated, sandboxNotFound].find(({ code }) => code === frame.code);
  if (gone) throw new DomainError(gone, frame.message, {});
  if (frame.code === "exec_timeout")
    return { isOk: false, text: textOf(`The command was ended after ${seconds} s.`, said) };
  const isEnded = frame.code === "killed_by_signal";
  return { isOk: isEnded, text: textOf(isEnded ? `ended by ${frame.signal}${why}` : frame.message, said) };
}

/** What is empty is not shown. */
export function textOf(first: string, { stdout, stderr }: { stdout: Ends; stderr: Ends }): string {
  return [
    first,
    ...(stdout.isEmpty ? [] : [`stdout:\n${stdout.text()}`]),
    ...(stderr.isEmpty ? [] : [`stderr:\n${stderr.text()}`]),
  ].join("\n");
}
