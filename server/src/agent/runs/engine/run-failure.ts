/** Failures of a run, which become its `error_code` and `error_message`. */
import { DomainError } from "#lib/errors.ts";
import { sessionFull } from "#agent/sessions/errors.ts";
import type { RunErrorCode } from "../states.ts";

export class RunFailure extends Error {
  override readonly name = "RunFailure";
  readonly code: RunErrorCode;
  /** Text that the model had written when a limit ended the run. Undefined if there is none. */
  readonly output: string | undefined;

  constructor(code: RunErrorCode, message: string, output?: string) {
    super(message);
    this.code = code;
    this.output = output;
  }
}

/** Thrown when every model is overloaded. The run is parked until a model may be called again, at `until`. */
export class ModelBusy extends Error {
  override readonly name = "ModelBusy";
  readonly step: number;
  readonly until: Date;
  readonly waitMs: number;

  constructor(step: number, until: Date, waitMs: number) {
    super("Every model is overloaded.");
    this.step = step;
    this.until = until;
    this.waitMs = waitMs;
  }
}

/** Thrown when every model of the agent rejected the conversation as too long. */
export class PromptTooLong extends RunFailure {
  constructor(message: string) {
    super("model_error", message);
  }
}

/** Converts an error to the failure that the run's owner sees. */
export function failureOf(error: unknown): RunFailure {
  if (error instanceof RunFailure) return error;
  if (error instanceof DomainError && error.code === sessionFull.code)
    return new RunFailure("limit_tokens", error.detail);
  return new RunFailure("internal", "An internal error stopped the run.");
}

const resume = "then resume the run with POST /v1/agents/runs/{run_id}/resume";

/** Cure for each error code. Empty if the message already contains a cure. */
const cures: Readonly<Record<RunErrorCode, string>> = {
  cancelled: "",
  model_error: `Check the model's id, its credential and its address, ${resume}.`,
  model_rate_limited: `Wait, or give the model \`fallbacks\`, ${resume}.`,
  credential_missing:
    "Create a credential with POST /v1/model-credentials, publish a version that names it, and invoke again in the session with `upgrade: true`.",
  limit_steps: `Raise \`limits.max_steps\` in a new version, or grant the limits once more: ${resume}.`,
  limit_tokens: `Raise \`limits.max_tokens\` in a new version, or grant the limits once more: ${resume}.`,
  limit_time: `Raise \`limits.max_seconds\` in a new version, or grant the limits once more: ${resume}.`,
  tool_unavailable: `Repair or replace the toolset, ${resume}.`,
  approval_expired: `Raise \`approvals.expires_in_seconds\` for later runs. To continue as if the call were denied, resume the run with POST /v1/agents/runs/{run_id}/resume.`,
  output_invalid: "Simplify `output.schema` or use another model, and invoke again.",
  session_ended: "Start a new session: invoke without `session_id`.",
  vm_lost: "",
  internal: "Resume the run with POST /v1/agents/runs/{run_id}/resume; the server's log has the cause.",
};

interface CurableFailure {
  code: RunErrorCode;
  message: string;
  cure?: string | undefined;
}

/** Returns an error's message with its cure. */
export function withCure({ code, message, cure = cures[code] }: CurableFailure): string {
  const sentence = /[.!?]$/.test(message.trimEnd()) ? message.trimEnd() : `${message.trimEnd()}.`;
  return `${sentence} ${cure}`.trim();
}
