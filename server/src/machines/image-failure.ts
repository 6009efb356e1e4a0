/**
 * Describes in words why an image could not be made. The error itself contains output of programs and paths of the
 * host, and goes only to the log, because `/readyz` needs no token.
 */

const causes: readonly (readonly [RegExp, string])[] = [
  [/names no Debian mirror/, "The host's apt has no Debian mirror."],
  [/no space left on device|ENOSPC|disk quota exceeded/i, "The host's disk is full."],
  [
    /could not (?:resolve|connect)|temporary failure|failed to fetch|connection (?:refused|reset|timed out)|network is unreachable|ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EHOSTUNREACH|fetch failed/i,
    "A source of its packages did not respond.",
  ],
  [/is not installed/, "The host lacks a program that makes images."],
  [/did not end within|printed nothing for|timed out/i, "The build did not finish in time."],
];

/** `makeSteps` of the runtime names the step. Only recipes of the server have labels. */
const step = /step (\d+) \(([^()\n]{1,80})\) failed/;
const cure = "The server log has the details, and kontor doctor checks the host.";

/** Returns two sentences: the cause, and where the details are. */
export function describeImageFailure(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  const kind = (error as { kind?: unknown } | null)?.kind;
  const [, cause] = causes.find(([pattern]) => pattern.test(text)) ?? [];
  if (cause !== undefined) return `${cause} ${cure}`;
  if (kind === "timeout") return `The build did not finish in time. ${cure}`;
  const [, number, label] = step.exec(text) ?? [];
  return `${number === undefined ? "The build failed." : `Step ${number} (${label}) failed.`} ${cure}`;
}
