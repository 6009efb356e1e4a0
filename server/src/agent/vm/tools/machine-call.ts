/**
 * Executes one call in a session's machine, with a deadline. The call is aborted when its run ends, and reports a lost
 * machine. If an earlier process started the call's command, the call continues with that command.
 */
import { abortable } from "#lib/concurrency/abortable.ts";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import type { Tool, ToolResult, ToolCall, ToolUser } from "#agent/tools/tool.ts";
import { lockExisting } from "#agent/runs/store.ts";
import { RunFailure } from "#agent/runs/engine/run-failure.ts";
import { findStartedMachine, findLost, isDeleted, type MachineAccess, ensureMachine } from "../machine.ts";

export interface MachineCall extends Pick<
  ToolCall,
  "id" | "values" | "commandId" | "command" | "noteCommand"
> {
  /** Remaining time of the call, in seconds. The machine enforces this limit if it can. */
  leftSeconds: number;
  /** Signal that is aborted when the run is over, or when the deadline and its margin have passed. */
  signal: AbortSignal;
  /** Returns true if the run is over or belongs to another process. */
  isLeft(): boolean;
  /**
   * Returns the same machine, resumed after a pause. Returns undefined if the session has another machine since then.
   */
  findAgain(): Promise<MachineAccess | undefined>;
}

export type Work = (app: App, place: MachineAccess, call: MachineCall) => Promise<ToolResult>;

/** Time in milliseconds after the call's deadline in which its work is stopped and the last output is read. */
const slackMs = 10_000;

/** Action and detail of a call's audit entry. The detail contains no file content and no command. */
export interface CallAudit {
  action: string;
  detail(values: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>>;
}

const machineGone: ToolResult = {
  isOk: false,
  isUnknown: true,
  text:
    "The call was interrupted, and its machine no longer exists. It is not known whether the call " +
    "took effect.",
};

export function runInMachine(app: App, user: ToolUser, work: Work, audit: CallAudit): Tool["call"] {
  return async (call) => {
    const { command } = call;
    const leftMs = leftOf(app, call);
    const until = performance.now() + leftMs;
    const inTime = AbortSignal.timeout(leftMs);
    const inMuchTime = AbortSignal.timeout(leftMs + slackMs);
    const signal = AbortSignal.any([call.signal, inMuchTime]);
    let place: MachineAccess | undefined;
    try {
      if (command) {
        // A command may end while no server runs. Such output is read even after the deadline.
        place = await abortable(findStartedMachine(app, user, command.sandboxId), signal);
        if (!place) return machineGone;
      } else {
        place = await abortable(ensureMachine(app, user), AbortSignal.any([call.signal, inTime]));
        accessLogOf(app).note({
          actor: place.actor,
          action: audit.action,
          target: { kind: "sandbox", id: place.sandboxId, label: null },
          workspace: user.workspaceId,
          detail: { ...audit.detail(call.values), run_id: user.runId, call_id: call.id },
          subject: { id: user.runId, holdExisting: lockExisting },
        });
      }
      const { sandboxId } = place;
      const given: MachineCall = {
        ...call,
        leftSeconds: Math.max(1, Math.floor((until - performance.now()) / 1000)),
        signal,
        isLeft: () => call.signal.aborted,
        findAgain: () => findStartedMachine(app, user, sandboxId),
      };
      return await abortable(work(app, place, given), signal);
    } catch (error) {
      const isLate = (command ? inMuchTime : inTime).aborted;
      return await explain(app, user, { call, place, error, isLate });
    }
  };
}

/** Returns the remaining time of the call in milliseconds. An earlier process may have used a part of the time. */
function leftOf(app: App, { command, timeoutMs, startedAt }: ToolCall): number {
  if (!command) return timeoutMs;
  const passedMs = Math.max(0, app.clock.now().getTime() - startedAt.getTime());
  return Math.max(0, timeoutMs - passedMs);
}

interface FailedCall {
  call: ToolCall;
  /** Machine of the call. Undefined if the machine was not ready. */
  place: MachineAccess | undefined;
  error: unknown;
  isLate: boolean;
}

/** Returns the result for the model. Throws errors that end the run. */
async function explain(app: App, user: ToolUser, failed: FailedCall): Promise<ToolResult> {
  const { call, place, error, isLate } = failed;
  call.signal.throwIfAborted();
  if (error instanceof RunFailure) throw error;
  if (place && isDeleted(error)) {
    const lost = await findLost(app, user, place);
    if (lost) throw lost;
  }
  if (error instanceof DomainError) {
    if (place) return { isOk: false, text: error.detail };
    const text = `No machine is available: ${error.detail}`;
    return { isOk: false, text, ...(call.command ? { isUnknown: true } : {}) };
  }
  if (!isLate) throw error;
  const seconds = call.timeoutMs / 1000;
  if (place) return { isOk: false, text: `The call took longer than ${seconds} s.` };
  const text = `The machine was not ready within ${seconds} s.`;
  return { isOk: false, text, ...(call.command ? { isUnknown: true } : {}) };
}
