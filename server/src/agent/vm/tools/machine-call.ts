/**
 * One call in a session's machine: bounded in time, given up when its run is over, and told when the machine is lost. A
 * call whose command an earlier process started goes on with that command.
 */
import { accessLogOf } from "#accounts/activity/access-log.ts";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import type { Tool, ToolAnswer, ToolCall, ToolUser } from "#agent/tools/tool.ts";
import { holdExistingRuns } from "#agent/runs/journal/erase.ts";
import { RunFailure } from "#agent/runs/engine/run-failure.ts";
import { findAgain, findLost, isGone, type Place, ready } from "../machine.ts";

export interface MachineCall extends Pick<
  ToolCall,
  "id" | "values" | "commandId" | "command" | "noteCommand"
> {
  /** What is left of the call's time, most of it for the machine to keep. */
  leftSeconds: number;
  /** Aborted when the run is over, or when a machine that keeps no time has had more of it than it should. */
  signal: AbortSignal;
  /** True if the run is over or goes on elsewhere. */
  isLeft(): boolean;
  /** The same machine, running again after a pause; undefined if the session has it no longer. */
  findAgain(): Promise<Place | undefined>;
}

export type Work = (app: App, place: Place, call: MachineCall) => Promise<ToolAnswer>;

/** Over a call's own time: what ending its work and the last of its output may take. */
const slackMs = 10_000;

/** Action and detail of a call's audit entry. The detail has no file content and no command. */
export interface CallAudit {
  action: string;
  detail(values: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>>;
}

const machineGone: ToolAnswer = {
  isOk: false,
  isUnknown: true,
  text: "The call was cut off, and the machine that it ran in is gone; whether it took effect is not known.",
};

export function inMachine(app: App, user: ToolUser, work: Work, audit: CallAudit): Tool["call"] {
  return async (call) => {
    const { command } = call;
    const leftMs = leftOf(app, call);
    const until = performance.now() + leftMs;
    const inTime = AbortSignal.timeout(leftMs);
    const inMuchTime = AbortSignal.timeout(leftMs + slackMs);
    const signal = AbortSignal.any([call.signal, inMuchTime]);
    let place: Place | undefined;
    try {
      if (command) {
        // A command that ended while no server ran has its output, also past its time.
        place = await unlessAborted(findAgain(app, user, command.sandboxId), signal);
        if (!place) return machineGone;
      } else {
        place = await unlessAborted(ready(app, user), AbortSignal.any([call.signal, inTime]));
        accessLogOf(app).note({
          actor: place.actor,
          action: audit.action,
          target: { kind: "sandbox", id: place.sandboxId, label: null },
          workspace: user.workspaceId,
          detail: { ...audit.detail(call.values), run_id: user.runId, call_id: call.id },
          subject: { id: user.runId, holdExisting: holdExistingRuns },
        });
      }
      const { sandboxId } = place;
      const given: MachineCall = {
        ...call,
        leftSeconds: Math.max(1, Math.floor((until - performance.now()) / 1000)),
        signal,
        isLeft: () => call.signal.aborted,
        findAgain: () => findAgain(app, user, sandboxId),
      };
      return await unlessAborted(work(app, place, given), signal);
    } catch (error) {
      const isLate = (command ? inMuchTime : inTime).aborted;
      return await explain(app, user, { call, place, error, isLate });
    }
  };
}

/** What is left of the call's time. An earlier process may have spent a part of it. */
function leftOf(app: App, { command, timeoutMs, startedAt }: ToolCall): number {
  if (!command) return timeoutMs;
  const passedMs = Math.max(0, app.clock.now().getTime() - startedAt.getTime());
  return Math.max(0, timeoutMs - passedMs);
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
  if (error instanceof DomainError) {
    if (place) return { isOk: false, text: error.detail };
    const text = `There is no machine for this: ${error.detail}`;
    return { isOk: false, text, ...(call.command ? { isUnknown: true } : {}) };
  }
  if (!isLate) throw error;
  const seconds = call.timeoutMs / 1000;
  if (place) return { isOk: false, text: `The call took longer than ${seconds} s.` };
  const text = `The machine was not ready within ${seconds} s.`;
  return { isOk: false, text, ...(call.command ? { isUnknown: true } : {}) };
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
