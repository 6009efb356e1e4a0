/** Describes the end of a process to its owner. */
import { constants } from "node:os";
import type { CommandRecord } from "#machines/host/guest.ts";
import type { Ending } from "#machines/machine-owner.ts";

const mib = 1024 ** 2;

export interface End {
  code: number | null;
  isOutOfMemory: boolean;
  ranMs: number;
  /** Description of the end, as a sentence. */
  message: string;
}

export function endOf(record: CommandRecord, limitBytes: number): End {
  const { exitCode, signal, startedAt, endedAt } = record;
  const ranMs = Math.max(0, (endedAt ?? startedAt).getTime() - startedAt.getTime());
  if (signal === null) {
    return { code: exitCode, isOutOfMemory: false, ranMs, message: `It ended with exit code ${exitCode}.` };
  }
  // No process in the machine sends SIGKILL. The kernel sends it when the machine's memory is used up.
  const isOutOfMemory = signal === constants.signals.SIGKILL;
  const why = isOutOfMemory
    ? `It was killed (signal 9), most likely because it ran out of memory: it may use ${limitBytes / mib} MB.`
    : `It was ended by signal ${signal}.`;
  return { code: 128 + signal, isOutOfMemory, ranMs, message: why };
}

export function endOfMachine({ exit }: Ending, limitBytes: number, ranMs: number): End {
  const isOutOfMemory = exit?.reason === "out_of_memory";
  const message = isOutOfMemory
    ? `It ran out of memory: it may use ${limitBytes / mib} MB.`
    : "The machine ended.";
  return { code: isOutOfMemory ? 137 : null, isOutOfMemory, ranMs, message };
}
