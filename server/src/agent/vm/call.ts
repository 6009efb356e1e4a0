/** One call in a session's machine: bounded in time, given up when its run is over, and told when the machine is lost. */
import { accessLogOf } from "#accounts/activity/access-log.ts";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import type { Tool, ToolAnswer, ToolCall, ToolUser } from "../tools/tool.ts";
import { RunFailure } from "../runs/failure.ts";
import { findLost, isGone, type Place, ready } from "./machine.ts";

export interface MachineCall {
  values: Record<string, unknown>;
  /** What is left of the call's time, most of it for the machine to keep. */
  leftSeconds: number;
  /** Aborted when the run is over, or when a machine that keeps no time has had more of it than it should. */
  signal: AbortSignal;
}

export type Work = (app: App, place: Place, call: MachineCall) => Promise<ToolAnswer>;

/** Over a call's own time: what ending its work and the last of its output may take. */
const slackMs = 10_000;

/** Action and detail of a call's audit entry. The detail has no file content and no command. */
export interface CallAudit {
  action: string;
  detail(values: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>>;
}

export function inMachine(app: App, user: ToolUser, work: Work, audit: CallAudit): Tool["call"] {
  return async (call) => {
    const until = performance.now() + call.timeoutMs;
    const inTime = AbortSignal.timeout(call.timeoutMs);
    const inMuchTime = AbortSignal.timeout(call.timeoutMs + slackMs);
    let place: Place | undefined;
    try {
      place = await unlessAborted(ready(app, user), AbortSignal.any([call.signal, inTime]));
      accessLogOf(app).note({
        actor: place.actor,
        action: audit.action,
        target: { kind: "sandbox", id: place.sandboxId, label: null },
        workspace: user.workspaceId,
        detail: { ...audit.detail(call.values), run_id: user.runId, call_id: call.id },
      });
      const leftSeconds = Math.max(1, Math.floor((until - performance.now()) / 1000));
      const signal = AbortSignal.any([call.signal, inMuchTime]);
      return await unlessAborted(work(app, place, { values: call.values, leftSeconds, signal }), signal);
    } catch (error) {
      return await explain(app, user, { call, place, error, isLate: inTime.aborted });
    }
  };
}

interface Failed {
  call: ToolCall;
  /** Undefined where the machine was not there yet. */
  place: Place | undefined;
  error: unknown;
  isLate: boolean;
}

/** What the model is told; throws what ends the run. */
async function explain(app: App, user: ToolUser, failed: Failed): Promise<ToolAnswer> {
  const { call, place, error, isLate } = failed;
  call.signal.throwIfAborted();
  if (error instanceof RunFailure) throw error;
  if (place && isGone(error)) {
    const lost = await findLost(app, user, place);
    if (lost) throw lost;
  }
  if (error instanceof DomainError)
    return { isOk: false, text: place ? error.detail : `There is no machine for this: ${error.detail}` };
  if (!isLate) throw error;
  const seconds = call.timeoutMs / 1000;
  return {
    isOk: false,
    text: place
      ? `The call took longer than ${seconds} s.`
      : `The machine was not ready within ${seconds} s.`,
  };
}

/** The work goes on where it cannot be stopped; nobody hears of it. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const giveUp = () => reject(signal.reason as Error);
  signal.addEventListener("abort", giveUp, { once: true });
  if (signal.aborted) giveUp();
  work.catch(() => {});
  try {
    return await Promise.race([work, promise]);
  } finally {
    signal.removeEventListener("abort", giveUp);
  }
}
