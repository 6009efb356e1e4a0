/** Errors of machines, and the translation of the runtime's errors to them. */
import { RuntimeError, type RuntimeErrorKind } from "@kontor/runtime/driver.ts";
import { defineError, type DomainError } from "#lib/errors.ts";

export const noCapacity = defineError("no_capacity", 503, (needs: string, cause?: DiskShort) => ({
  detail: `This host has no room for another machine (${needs}). Delete machines that are not needed, or try again shortly.`,
  meta: { retry_after: 5 },
  cause,
}));

/** The disk has too few free bytes. Moving another machine to disk would not help. */
export class DiskShort extends Error {
  override readonly name = "DiskShort";
}

export const startFailed = defineError("start_failed", 503, (cause: unknown) => ({
  detail:
    "The machine could not be started. Try again; if it keeps failing, `./kontor doctor` on the host says what is missing.",
  meta: { retry_after: 2 },
  cause,
}));

export const notCheckpointable = defineError(
  "not_checkpointable",
  409,
  (detail: string, found: Record<string, unknown>) => ({
    detail: `The machine cannot be paused now: ${detail}.`,
    meta: found,
  }),
);

/**
 * A snapshot was taken during a call. The call's connection is lost; processes that the call started continue.
 */
export const interruptedBySnapshot = defineError(
  "interrupted_by_snapshot",
  409,
  () =>
    "A snapshot of the machine was taken while the call was under way, which ended its connection. Background commands and detached processes continue. Repeat the call.",
);

export const snapshotDamaged = defineError(
  "snapshot_damaged",
  409,
  () =>
    "The snapshot is damaged or its files are missing, so no machine can start from it. Delete it, and take a new one.",
);

export const snapshotIncompatible = defineError(
  "snapshot_incompatible",
  409,
  (needs: { runtimeBuild: string; cpuClass: string }) => ({
    detail: `The snapshot restores only with runtime ${needs.runtimeBuild} on processors "${needs.cpuClass}", which this host does not have.`,
    meta: { needs: { runtime_build: needs.runtimeBuild, cpu_class: needs.cpuClass } },
  }),
);

export const restoreFailed = defineError("restore_failed", 503, (cause: unknown) => ({
  detail: "The machine could not be started from its snapshot. The snapshot is kept. Try again.",
  meta: { retry_after: 2 },
  cause,
}));

/** True for a `restoreFailed` that is permanent: the snapshot's bytes are damaged or missing. */
export function isForGood({ cause }: { cause?: unknown }): boolean {
  return cause instanceof RuntimeError && cause.kind === "not_restorable";
}

export const volumeMissing = defineError("volume_missing", 503, (cause: unknown) => ({
  detail:
    "The volume's data is missing on the host; check that the disk of its region is mounted. No empty volume was created instead.",
  meta: { retry_after: 30 },
  cause,
}));

export const templatePreparing = defineError(
  "template_preparing",
  503,
  (name: string, progress: { fraction: number; step: string }) => ({
    detail: `Template "${name}" is still being made (${Math.round(progress.fraction * 100)} %: ${progress.step}). Try again shortly.`,
    meta: { retry_after: 5, progress: Number(progress.fraction.toFixed(2)) },
  }),
);

export const templateFailed = defineError("template_failed", 503, (name: string, why: string) => ({
  detail: `Template "${name}" could not be made on this host: ${why} The next request tries again.`,
  meta: { retry_after: 30 },
}));

export const machineDied = defineError("machine_died", 503, (cause: unknown) => ({
  detail: "The machine ended while the call was under way.",
  meta: { retry_after: 1 },
  cause,
}));

const machineTimeout = defineError("machine_timeout", 504, (cause: unknown) => ({
  detail: "The machine did not respond in time.",
  cause,
}));

const machineFailed = defineError("machine_failed", 500, (cause: unknown) => ({
  detail: "The machine could not execute the call.",
  cause,
}));

export const fileNotFound = defineError("file_not_found", 404, (detail: string) => detail);
export const isDirectory = defineError("is_directory", 400, (detail: string) => detail);
const notDirectory = defineError("not_directory", 400, (detail: string) => detail);
const fileExists = defineError("file_exists", 409, (detail: string) => detail);
export const notPermitted = defineError("not_permitted", 403, (detail: string) => detail);
const invalidPath = defineError("invalid_path", 400, (detail: string) => detail);
export const fileTooLarge = defineError("payload_too_large", 413, (detail: string) => detail);
const diskFull = defineError("disk_full", 507, (detail: string) => detail);
export const tooManyProcesses = defineError("too_many_processes", 409, (detail: string) => detail);
export const execFailed = defineError("exec_failed", 400, (detail: string) => detail);

/** Errors of every call into a machine; routes list them for OpenAPI. */
export const machineErrors = [interruptedBySnapshot, machineDied, machineTimeout, machineFailed] as const;
export const fileErrors = [
  fileNotFound,
  isDirectory,
  notDirectory,
  fileExists,
  notPermitted,
  invalidPath,
  fileTooLarge,
  diskFull,
] as const;

const translation: Record<RuntimeErrorKind, (error: RuntimeError) => DomainError> = {
  path_not_found: (error) => fileNotFound(error.message),
  is_directory: (error) => isDirectory(error.message),
  not_directory: (error) => notDirectory(error.message),
  exists: (error) => fileExists(error.message),
  not_permitted: (error) => notPermitted(error.message),
  invalid_path: (error) => invalidPath(error.message),
  too_large: (error) => fileTooLarge(error.message),
  disk_full: (error) => diskFull(error.message),
  too_many_processes: (error) => tooManyProcesses(error.message),
  exec_failed: (error) => execFailed(error.message),
  machine_died: (error) => machineDied(error),
  not_running: (error) => machineDied(error),
  interrupted: () => interruptedBySnapshot(),
  not_found: (error) => machineDied(error),
  timeout: (error) => machineTimeout(error),
  no_capacity: (error) => noCapacity(error.message),
  image_failed: (error) => startFailed(error),
  host_unsupported: (error) => startFailed(error),
  not_checkpointable: (error) => notCheckpointable(error.message, error.details),
  not_restorable: (error) => restoreFailed(error),
  volume_missing: (error) => volumeMissing(error),
  volume_in_use: (error) => machineFailed(error),
  stale_generation: (error) => machineFailed(error),
  already_exists: (error) => machineFailed(error),
  connection_refused: (error) => machineFailed(error),
  guest_protocol: (error) => machineFailed(error),
  failed: (error) => machineFailed(error),
};

export function isVolumeMissing(error: unknown): boolean {
  return error instanceof RuntimeError && error.kind === "volume_missing";
}

/** Translates an error of the runtime into one that the caller may see. Other errors pass through. */
export function translate(error: unknown): unknown {
  return error instanceof RuntimeError ? translation[error.kind](error) : error;
}

/** Runs a call into a machine with its errors translated. */
export async function withTranslatedErrors<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    throw translate(error);
  }
}
