/**
 * Converts a run's events to the AI SDK's UI message stream, version 1, in which each part has a start and an end.
 * `reset-step` removes the parts of a retried step; the retry continues in the same step.
 */
import type { RunEvent } from "../schema.ts";

export type UiChunk = { type: string } & Record<string, unknown>;

/** Converts events to chunks. Omits a failure that a resume follows, because that failure does not end the message. */
export async function* toUi(
  events: AsyncIterable<RunEvent>,
): AsyncGenerator<{ seq: number; chunks: UiChunk[] }> {
  const encoder = new UiEncoder();
  let failure: RunEvent | undefined;
  for await (const event of events) {
    failure = event.type === "run.failed" ? event : undefined;
    if (!failure) yield { seq: event.seq, chunks: encoder.chunksOf(event) };
  }
  if (failure) yield { seq: failure.seq, chunks: encoder.chunksOf(failure) };
}

class UiEncoder {
  #isStarted = false;
  #isInStep = false;
  /** True if the open step was reset and has no parts. */
  #isReset = false;
  /** The text or reasoning part that has not ended. */
  #open: { kind: "text" | "reasoning"; id: string } | undefined;
  /** Approval requests with their calls. `#denied` contains the calls that were not approved. */
  readonly #asked = new Map<string, { callId: string; tool: string }>();
  readonly #denied = new Set<string>();
  readonly #questions = new Set<string>();

  chunksOf(event: RunEvent): UiChunk[] {
    const chunks: UiChunk[] = [];
    if (!this.#isStarted && event.type !== "run.queued") {
      this.#isStarted = true;
      const { run_id, session_id } = event;
      chunks.push({ type: "start", messageId: run_id, messageMetadata: { run_id, session_id } });
    }
    // Summaries are not part of the response.
    if (event["purpose"] === "summary") return chunks;
    const text = (name: string): string => (typeof event[name] === "string" ? event[name] : "");
    switch (event.type) {
      case "step.started":
        if (!this.#isReset) chunks.push(...this.#endStep(), { type: "start-step" });
        this.#isInStep = true;
        this.#isReset = false;
        break;
      case "reasoning.delta":
        chunks.push(...this.#turnTo("reasoning", `reasoning-${event.seq}`));
        chunks.push({ type: "reasoning-delta", id: this.#open!.id, delta: text("delta") });
        break;
      case "message.started":
        chunks.push(...this.#turnTo("text", text("message_id")));
        break;
      case "message.delta":
        chunks.push(...this.#turnTo("text", text("message_id")));
        chunks.push({ type: "text-delta", id: this.#open!.id, delta: text("delta") });
        break;
      case "message.completed":
        chunks.push(...this.#close());
        break;
      case "step.completed":
        // The step ends after the results of its tools.
        chunks.push(...this.#close());
        break;
      case "tool.input":
        chunks.push(...this.#close(), {
          type: "tool-input-available",
          toolCallId: text("call_id"),
          toolName: text("tool"),
          input: event["arguments"] ?? {},
          dynamic: true,
        });
        break;
      case "tool.completed":
        chunks.push({
          type: "tool-output-available",
          toolCallId: text("call_id"),
          output: text("result_preview"),
          dynamic: true,
        });
        break;
      case "approval.requested":
        if (event["kind"] === "elicitation") {
          this.#questions.add(text("request_id"));
          chunks.push(questionPart(event));
          break;
        }
        this.#asked.set(text("request_id"), { callId: text("call_id"), tool: text("tool") });
        chunks.push({
          type: "tool-approval-request",
          approvalId: text("request_id"),
          toolCallId: text("call_id"),
        });
        break;
      case "approval.resolved":
        chunks.push(...this.#resolve(event, text));
        break;
      case "connection.auth_required":
        chunks.push(
          signInPart(event, { authorize_url: event["authorize_url"], expires_in: event["expires_in"] }),
        );
        break;
      case "connection.auth_resolved":
        chunks.push(signInPart(event, { outcome: event["outcome"] }));
        break;
      case "tool.failed":
        if (this.#denied.has(text("call_id"))) {
          chunks.push({ type: "tool-output-denied", toolCallId: text("call_id") });
          break;
        }
        chunks.push({
          type: "tool-output-error",
          toolCallId: text("call_id"),
          errorText: text("result_preview"),
          dynamic: true,
        });
        break;
      case "step.reset":
        if (!this.#isInStep) break;
        // `reset-step` removes the open part too, so an end for that part would be an error.
        this.#open = undefined;
        this.#isReset = true;
        chunks.push({ type: "reset-step" });
        break;
      case "run.completed":
        chunks.push(...this.#endStep(), { type: "finish" });
        break;
      case "run.failed":
        chunks.push(
          ...this.#endStep(),
          { type: "error", errorText: text("error_message") },
          { type: "finish" },
        );
        break;
      default:
    }
    return chunks;
  }

  #resolve(event: RunEvent, text: (name: string) => string): UiChunk[] {
    const approvalId = text("request_id");
    const outcome = text("outcome");
    if (this.#questions.has(approvalId)) {
      const data = { request_id: approvalId, outcome };
      return [{ type: "data-question", id: approvalId, data }];
    }
    const approved = outcome === "approved";
    const asked = this.#asked.get(approvalId);
    if (!approved && asked) this.#denied.add(asked.callId);
    const reason = text("reason") || (approved || outcome === "denied" ? undefined : outcome);
    const response = { type: "tool-approval-response", approvalId, approved, ...(reason ? { reason } : {}) };
    if (!asked || event["arguments"] === undefined) return [response];
    // The part shows the arguments as a person changed them, and keeps its approval.
    const { callId: toolCallId, tool: toolName } = asked;
    const input = event["arguments"];
    return [{ type: "tool-input-available", toolCallId, toolName, input, dynamic: true }, response];
  }

  #turnTo(kind: "text" | "reasoning", id: string): UiChunk[] {
    if (this.#open?.kind === kind) return [];
    const before = this.#close();
    this.#open = { kind, id };
    return [...before, { type: `${kind}-start`, id }];
  }

  #close(): UiChunk[] {
    const open = this.#open;
    this.#open = undefined;
    return open ? [{ type: `${open.kind}-end`, id: open.id }] : [];
  }

  #endStep(): UiChunk[] {
    const chunks = this.#close();
    if (this.#isInStep) chunks.push({ type: "finish-step" });
    this.#isInStep = false;
    this.#isReset = false;
    return chunks;
  }
}

/** Returns the data part of a toolset's sign-in. A later part of the same toolset replaces this part. */
function signInPart({ toolset_id }: RunEvent, state: Record<string, unknown>): UiChunk {
  return { type: "data-sign-in", id: toolset_id, data: { toolset_id, ...state } };
}

/**
 * Returns the data part of a question of a tool's server. A later part with the question's outcome replaces this part.
 */
function questionPart({ request_id, call_id, tool, question, expires_at }: RunEvent): UiChunk {
  return { type: "data-question", id: request_id, data: { request_id, call_id, tool, question, expires_at } };
}
