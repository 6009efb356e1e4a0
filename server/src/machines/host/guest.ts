/** What an owner may do inside its machine: the runtime's words, handed on so that only this folder imports them. */
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
