/**
 * Operations of an owner inside its machine: types of the runtime, re-exported because only this folder imports the
 * runtime.
 */
export type {
  CommandRecord,
  FileChange,
  FileStat,
  Guest,
  ImageService,
  GuestProcess,
  ProcessExit,
  SpawnSpec,
} from "@kontor/runtime/driver.ts";
