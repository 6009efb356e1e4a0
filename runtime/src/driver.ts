/**
 * The one seam between Kontor and whatever isolates a machine. Read this first.
 *
 * A driver boots machines from images, changes what they may use, freezes, checkpoints and removes them, and hands
 * out a `Guest`: the connection to PID 1 inside. It knows nothing of sandboxes, owners or databases; it keeps no
 * truth of its own, and `list()` says what really exists so that the caller can compare it with what should.
 *
 * Every verb is idempotent where its name allows it: `remove` of a machine that is gone succeeds, `freeze` of a
 * frozen one too. Every verb has a deadline of its own and fails with a `RuntimeError`; nothing here hangs.
 */
import type { Duplex, Readable } from "node:stream";

/** Fixed length, `m` and 19 characters of `[a-z0-9]`: runsc matches ids by prefix, so one may never begin another. */
export type MachineId = string;

/** `off`: no route at all. `restricted`: only the egress proxy. `open`: the internet, never hosts or private ranges. */
export type NetworkMode = "off" | "restricted" | "open";

/** What a machine may use. All of it can be changed while the machine runs, but `diskBytes`. */
export interface Resources {
  /** Cores; fractions allowed. */
  vcpus: number;
  /** Memory for the machine's processes. gVisor's own memory comes on top (cgroup/layout.ts). */
  memoryBytes: number;
  /** What the machine may write on its root disk; the guest gets ENOSPC past it. Fixed at create. */
  diskBytes: number;
  /** Of each user inside. A native machine counts threads as well, as Linux does: a Node process has about eleven. */
  maxProcesses: number;
}

/**
 * Files that outlive machines, mounted at `/persist`. At most one machine has a volume at a time. What a program there
 * has synced is on the host's disk.
 */
export interface VolumeSpec {
  /** The volume's own, whole or absent; the driver alone knows what is in it. */
  directory: string;
  /** What it holds; the guest gets ENOSPC past it. Fixed once it is made. */
  sizeBytes: number;
  /** An empty one is made where there is none. Otherwise a missing one is `volume_missing`, never an empty one. */
  isNew: boolean;
}

/**
 * A machine's place among others, whatever its network mode: what belongs to a group reaches over TCP what others of it
 * serve, by an address that is the service's own, and nobody else does. A machine without a group reaches no machine.
 */
export interface PrivateNetwork {
  /** Machines of one group reach what others of it serve. Opaque, 1 to 64 of `[A-Za-z0-9_-]`. */
  group: string;
  /**
   * From its start on until it ends. Whoever begins to serve an address takes it from the machine that did before. The
   * name is as DNS has it, ends in `.internal` and resolves within the group alone; `address` is one of
   * `serviceAddress`, and outlives the machine; 1 to 16 ports, of TCP.
   */
  serves?: { name: string; address: string; ports: number[] };
}

/**
 * `gvisor`: a kernel of its own, for code nobody has looked at. `native`: the host's kernel behind a user namespace, a
 * system call filter and eight capabilities, for what needs its speed; it cannot be checkpointed or captured.
 */
export type Isolation = "gvisor" | "native";

export interface MachineSpec {
  id: MachineId;
  /** Counts up each time the machine is started somewhere; orders of an older generation are refused. */
  generation: number;
  /** Id of an image that `ensureImage`, `captureImage` or `importImage` made. */
  image: string;
  /** Fixed at create; `gvisor` where absent. */
  isolation?: Isolation;
  resources: Resources;
  network: NetworkMode;
  hostname: string;
  /**
   * Base environment of every process, over the image's own; what `spawn` is given goes on top. Never written to the
   * host's disk, so `list` answers it empty for a machine that was adopted; the machine itself keeps it.
   */
  env: Record<string, string>;
  /** Fixed at create: a machine that waits in a pool cannot be given one. */
  volume?: VolumeSpec;
  /** Fixed at create, and at restore, where this counts: nothing of it is in a checkpoint. A pool machine has none. */
  privateNetwork?: PrivateNetwork;
}

/** What may change when a warm machine becomes somebody's: all of it is applied before `claim` answers. */
export interface ClaimSpec {
  generation: number;
  resources: Omit<Resources, "diskBytes">;
  network: NetworkMode;
  /** A native machine keeps the one it was started with; `not_permitted` for another. */
  hostname: string;
  env: Record<string, string>;
}

/**
 * `running`: the guest answers. `frozen`: the cgroup freezer holds it, it uses no CPU. `dead`: its processes ended
 * (`exit` says why, if that is known) and what is left waits for `remove`.
 */
export type MachineState = "running" | "frozen" | "dead";

export interface Machine {
  id: MachineId;
  state: MachineState;
  /** Null where the driver finds a machine whose record it lost. */
  spec: MachineSpec | null;
  exit: MachineExit | null;
}

export interface MachineExit {
  /**
   * `out_of_memory`: the kernel killed the machine at its limit. `removed`: the driver removed it. Ordinarily only the
   * largest process gets SIGKILL and the machine lives on. The kernel kills in a native machine, PID 1 in the others.
   */
  reason: "out_of_memory" | "removed" | "failed";
  at: Date;
}

/**
 * A machine on disk, as `checkpoint` wrote it: memory, processes and root disk. It lies in a directory of its own with
 * this as `manifest.json`, written last.
 */
export interface Checkpoint {
  /** Of all files together. */
  bytes: number;
  /** Without a hash where it was not to last. */
  files: { name: string; bytes: number; sha256: string | null }[];
  /** Restores only on a host whose `HostFacts` list this build and the same `cpuClass`. */
  runtimeBuild: string;
  cpuClass: string;
  /** The guest program that is PID 1 in it; the host keeps every build. */
  guestBuild: string;
  /** Size of its /dev/shm; absent, and unlimited, in checkpoints of older servers. */
  sharedMemoryBytes?: number;
}

export interface CheckpointOptions {
  /** Writes past the page cache; the driver's choice where absent. */
  direct?: boolean;
  /** The machine is not left frozen. */
  goesOn?: boolean;
  /** False where it serves restores of this process alone: it is neither hashed nor synced. */
  isLasting?: boolean;
}

/** One reading of the machine's cgroup; rates are for the caller to derive from two of them. */
export interface MachineStats {
  /** Time of the CPU reading. */
  at: Date;
  cpuSeconds: number;
  /** The working set: without the page cache the kernel can drop. */
  memoryBytes: number;
  /** Tasks on the host: in gVisor about two for each process inside, and twenty for the machine itself. */
  processes: number;
  diskBytes: number;
  egressDenied: number;
  /** Over its network, in all that the slot it has ever carried: only differences say something. Zero without one. */
  networkRxBytes: number;
  networkTxBytes: number;
}

/** Use of the filesystem that machines write to. */
export interface DiskUse {
  freeBytes: number;
  /** Bytes that each machine's disk and volume occupy on it; a volume on another filesystem counts zero. */
  machines: ReadonlyMap<MachineId, number>;
}

export type ImageStep =
  | { kind: "debian"; suite: string; components: string[]; packages: string[] }
  | { kind: "image"; name: string }
  | {
      kind: "npm";
      package: string;
      version: string;
      into: string;
      paths: string[];
      links?: Record<string, string>;
    }
  /** Files that lie beside the recipe, in the directory `from`; `contents` are theirs, put in when it is read. */
  | { kind: "files"; from: string; into: string; contents?: Record<string, string> }
  /** What the package-lock.json in this directory of the image names. */
  | { kind: "npm-ci"; directory: string }
  | { kind: "run"; argv: string[] };

/** A program that runs in every machine of an image from its start on, and answers on a port of its loopback. */
export interface ImageService {
  /** Protocol and version that the service speaks: `kontor-code/2`. */
  speaks: string;
  argv: string[];
  port: number;
}

/** An image as data: steps in order, then commands whose output says what it really holds. */
export interface ImageRecipe {
  name: string;
  /** What a user may expect of the name, for example `python 3.12`. */
  promise: Record<string, string>;
  /** Each list is one way to make it; the first that works is taken. All but the first are substitutes. */
  ways: { steps: ImageStep[]; substitute: boolean }[];
  env: Record<string, string>;
  /** name of the content → argv that prints its version */
  probes: Record<string, string[]>;
  service?: ImageService;
  /** True adds the ordinary user `user`. Images that others build on never have it. */
  user?: boolean;
}

export interface Image {
  id: string;
  name: string;
  /** Id of the image whose machine it was captured from; absent where it was made of a recipe. */
  base?: string;
  sizeBytes: number;
  env: Record<string, string>;
  /** name → version found by the recipe's probes */
  contents: Record<string, string>;
  /** True where the image is not what its name promises (Python 3.13 under the name python-3.12). */
  substituted: boolean;
  /** Version inside if it differs from the promised one. Absent otherwise, and in images of older servers. */
  substitute?: string;
  /** Its recipe's own, else that of the image it was made on. */
  service: ImageService | null;
  createdAt: Date;
}

/** For programs of the host: `nsenter --net=<netnsPath>`. */
export interface LentNetwork {
  netnsPath: string;
  /** Address of the resolver in it. */
  resolver: string;
  /** Nothing is left in it. */
  release(): Promise<void>;
}

/** An image whose files are kept by somebody else. */
export interface LayeredImage {
  /** The caller's choice: lower case letters, digits, `_`, `.` and `-`. */
  id: string;
  name: string;
  /** Absolute directories on this host, the lowest first, 100 at most. Only read. */
  layers: string[];
  env: Record<string, string>;
  sizeBytes: number;
}

/** `fraction` 0–1 over the whole of the work, `step` for a person. */
export type Progress = (p: { fraction: number; step: string }) => void;

export interface HostFacts {
  driver: string;
  kernel: string;
  cgroup: "v1" | "v2" | "none";
  vcpus: number;
  memoryBytes: number;
  diskFreeBytes: number;
  /** The build that new machines are started with. */
  runtimeBuild: string;
  /** Every build that a checkpoint can be restored with, `runtimeBuild` included. */
  runtimeBuilds: readonly string[];
  cpuClass: string;
}

export interface Driver {
  readonly name: "linux" | "fake";

  /** Brings the host to what the driver needs (tables, cgroups, sockets) and adopts what runs already. */
  open(): Promise<void>;
  /** Lets go of the host without touching a machine: they run on and the next `open` adopts them. */
  close(): Promise<void>;

  facts(): Promise<HostFacts>;
  /** Removes builds of the isolating program that no machine and none of these checkpoints need. */
  pruneRuntimes(neededBuilds: readonly string[]): Promise<void>;
  list(): Promise<Machine[]>;

  /** Makes an image unless it is there; two callers at once share one build. */
  ensureImage(recipe: ImageRecipe, progress?: Progress): Promise<Image>;
  images(): Promise<Image[]>;
  /**
   * Makes an image of what a machine made of its own: its files as they are now, its image's environment and contents.
   * Every process inside but PID 1 is ended first; the machine lives on. Files, directories and links only, by anybody's
   * ownership. `image_failed` past the machine's disk, also where a sparse file says so; `already_exists` for an id that
   * is taken. On failure nothing of it is left.
   */
  captureImage(
    id: MachineId,
    image: { id: string; name: string },
    options: { timeoutMs: number },
  ): Promise<Image>;
  /**
   * Makes an image of directories that are another's: layers of a container image, as overlayfs has them. They stay where
   * they are, and as they are, until `removeImage`. Machines of either isolation run it. `already_exists` for an id that
   * is taken, `image_failed` for layers that cannot be stacked.
   */
  importImage(image: LayeredImage): Promise<Image>;
  /** The caller has made sure that no machine and no checkpoint needs it. Succeeds where there is none. */
  removeImage(id: string): Promise<void>;

  /**
   * A namespace of the machines' network for what is no machine, with the ways out of `mode`, until it is given back or
   * the driver is opened anew.
   */
  lendNetwork(mode: NetworkMode): Promise<LentNetwork>;

  /** Boots a machine; answers when its guest does. On failure nothing of it is left. */
  create(spec: MachineSpec): Promise<void>;
  /** Thaws a warm machine and makes it somebody's. Safe to repeat with the same spec. */
  claim(id: MachineId, spec: ClaimSpec): Promise<void>;
  setNetwork(id: MachineId, mode: NetworkMode): Promise<void>;
  setResources(id: MachineId, resources: Omit<Resources, "diskBytes">): Promise<void>;
  freeze(id: MachineId): Promise<void>;
  thaw(id: MachineId): Promise<void>;
  /** Ends the machine and everything it had on this host. Works in every state, also on what `list` calls dead. */
  remove(id: MachineId): Promise<void>;
  stats(id: MachineId): Promise<MachineStats>;

  /** Free bytes of the host's disk, and the bytes that machines occupy, dead ones included. */
  diskUse(): Promise<DiskUse>;

  /** Bytes the files of a volume take, attached or not; zero where none was made. */
  volumeUsage(directory: string): Promise<number>;

  /**
   * Writes the whole machine to `directory`, which must not exist: aside, hashed and on disk before it gets its name. The
   * machine is left frozen and its connections ended; `remove` frees its memory, `thaw` lets it go on where it was.
   * With `goesOn` it goes on as soon as its bytes are written, before they are hashed: what is asked of it meanwhile
   * waits, what was under way fails with `interrupted`.
   * A failure leaves it running and unharmed, and no directory. `not_checkpointable` where something inside cannot be
   * written down: `details` are `{ pid, process, file }`. A volume is not in it, but is synced with it.
   */
  checkpoint(id: MachineId, directory: string, options?: CheckpointOptions): Promise<Checkpoint>;
  /**
   * Boots a machine from a checkpoint, which stays as it is: with its files and processes where they were, and this
   * spec's limits, network, hostname, environment and volume. The id may be another than the checkpointed machine's, the image
   * may not. Answers when the guest does; on failure nothing of it is left. `not_restorable` where the checkpoint is
   * damaged, or was made by another runtime build or on another class of processors.
   */
  restore(spec: MachineSpec, directory: string): Promise<void>;

  /** The connection to PID 1. Cheap; fails with `not_found` where there is no such machine. */
  guest(id: MachineId): Guest;
  /** Calls back once for every machine that ends, whoever ended it. */
  onExit(listener: (id: MachineId, exit: MachineExit) => void): void;
}

/** A process to start inside. Exactly one of `argv` and `shell` is given. */
export interface SpawnSpec {
  argv?: string[];
  /** Run by `/bin/bash -c`, or `/bin/sh -c` where there is no bash. */
  shell?: string;
  cwd?: string;
  env?: Record<string, string>;
  /** A name or a number; root where absent. */
  user?: string;
  /** The whole process group gets SIGKILL at this age. */
  timeoutMs?: number;
  /** What becomes of the process when this connection ends: a streamed exec dies with it. */
  onDisconnect: "kill" | "run_on";
}

/**
 * Exactly one of `code` and `signal` is a number. `outOfMemory`: the process, or another one of its session, was killed
 * because the machine's processes used more than its memory. `durationUs` is measured inside, from fork to exit.
 */
export interface ProcessExit {
  code: number | null;
  signal: number | null;
  timedOut: boolean;
  outOfMemory: boolean;
  durationUs: number;
}

export interface OutputChunk {
  stream: "stdout" | "stderr";
  data: Buffer;
}

/** Output is pulled: what nobody reads stops the process, not the server. */
export interface GuestProcess {
  readonly pid: number;
  readonly output: AsyncIterable<OutputChunk>;
  /** Settles after the last chunk was read. */
  readonly exit: Promise<ProcessExit>;
  writeStdin(data: Buffer): Promise<void>;
  endStdin(): void;
  signal(signal: number): void;
  /** Lets go of the connection; `onDisconnect` says what that means. */
  close(): void;
}

/** A background command to start: it belongs to no connection, and its output is kept inside. */
export interface CommandSpec extends Omit<SpawnSpec, "onDisconnect"> {
  /** The caller's choice, unique in this machine: 1 to 64 bytes. */
  id: string;
  /** At most 256 bytes. */
  tag?: string;
  /** Runs on a terminal of this size; both its outputs are one stream then, `stdout`. */
  terminal?: TerminalSize;
}

/** In characters, each at most 65535. */
export interface TerminalSize {
  cols: number;
  rows: number;
}

/** A background command as its machine remembers it. */
export interface CommandRecord {
  id: string;
  tag: string;
  /** The shell line, or argv joined by blanks; at most 4095 bytes. */
  text: string;
  /** `killed` where it ended after `killCommand`, however it ended. */
  status: "running" | "exited" | "killed";
  pid: number;
  exitCode: number | null;
  signal: number | null;
  timedOut: boolean;
  /** The same as in `ProcessExit`. */
  outOfMemory: boolean;
  startedAt: Date;
  endedAt: Date | null;
  /** All it ever wrote; the first `droppedBytes` of it are no longer kept. */
  outputBytes: number;
  droppedBytes: number;
  /** As it is now; null where it runs on none. */
  terminal: TerminalSize | null;
}

export interface CommandChunk extends OutputChunk {
  /** Of the first byte of `data`, in all the command ever wrote. */
  offset: number;
}

export interface CommandLogs {
  chunks: CommandChunk[];
  /** Where to go on. */
  nextOffset: number;
  command: CommandRecord;
}

export interface FileStat {
  isDir: boolean;
  sizeBytes: number;
  /** Permission bits only. */
  mode: number;
  modifiedAt: Date;
  /** Null if the guest is of an older build, which does not report it. */
  uid: number | null;
  gid: number | null;
  /** Target of a symlink. The other fields describe the target, or the symlink itself if the target is missing. */
  linkTarget: string | null;
}

export interface DirEntry extends FileStat {
  name: string;
}

/** A page of a directory: the first entries after a name, in byte order of their names. */
export interface ListPage {
  /** Maximum of entries; at most 10,001. */
  limit: number;
  after?: string | undefined;
}

/**
 * What happened below a watched directory. `overflow` stands for changes that were lost, because they came faster than
 * they were read: look for yourself.
 */
export type FileChange =
  | { kind: "created" | "modified" | "deleted"; path: string; isDir: boolean }
  | { kind: "moved"; path: string; from: string; isDir: boolean }
  | { kind: "overflow" };

export interface ReadOptions {
  maxBytes?: number;
  offset?: number;
  length?: number;
}

/** Where a change may happen: the path, with every symlink followed, must lie under one of these. */
export interface Within {
  roots: string[];
}

export interface Guest {
  ping(): Promise<void>;
  spawn(spec: SpawnSpec): Promise<GuestProcess>;

  /**
   * Streams a file without holding it, from `offset` on (0) and at most `length` bytes of it. Fails with `is_directory`,
   * `path_not_found`, `too_large` where the file is larger than `maxBytes`.
   */
  readFile(path: string, options?: ReadOptions): Promise<{ stat: FileStat; content: Readable }>;
  /** Written aside and renamed: a reader sees the old file or the new one. Parents are made. */
  writeFile(
    path: string,
    content: Buffer | AsyncIterable<Buffer>,
    options: { mode: number } & Within,
  ): Promise<{ sizeBytes: number }>;
  /** Without a page, the order is undefined, and more than 10,000 entries fail with `too_large`. */
  list(path: string, page?: ListPage): Promise<DirEntry[]>;
  /** Undefined where nothing is there. */
  stat(path: string): Promise<FileStat | undefined>;
  mkdir(path: string, options: { mode: number; parents: boolean } & Within): Promise<void>;
  move(from: string, to: string, options: { overwrite: boolean } & Within): Promise<void>;
  /**
   * Fails with `is_directory` for a directory unless `recursive` is set. A tree deeper than 256 directories fails with
   * `too_large`; a part of it may be removed by then.
   */
  remove(path: string, options: { recursive?: boolean } & Within): Promise<void>;

  /**
   * Changes in a directory, with `recursive` in all below it, from the moment this resolves; read them at once. Ends when
   * the directory itself is gone. Aborting `signal` lets go of the machine and ends with the signal's reason. Fails with
   * `not_directory`, with `too_large` past 8192 directories, with `no_capacity` past 16 watches of the machine.
   */
  watch(
    path: string,
    options: { recursive: boolean; signal: AbortSignal },
  ): Promise<AsyncIterable<FileChange>>;

  /**
   * Starts a process that outlives every connection and this server; its output goes to a ring of 16 MiB inside.
   * Fails with `exists` for an id that is taken, `too_many_processes` while 128 run, or 16 on terminals, and as `spawn`
   * does.
   */
  startCommand(spec: CommandSpec): Promise<{ pid: number }>;
  /** Newest first. Finished ones are forgotten past 100, or past 64 MiB of kept output. */
  listCommands(): Promise<CommandRecord[]>;
  /** Fails with `not_found` for a command the machine does not know (any more), as all below do. */
  getCommand(id: string): Promise<CommandRecord>;
  /**
   * SIGTERM to the group now, SIGKILL after 5 s; nothing for one that ended. On a terminal it is SIGHUP, and to the
   * session. Answers with the record as of now.
   */
  killCommand(id: string): Promise<CommandRecord>;
  /** To the group of a command that runs; nothing for one that ended. */
  signalCommand(id: string, signal: number): Promise<void>;
  /** Fails with `not_running` once the command takes no more input, with `timeout` if it does not read it. */
  writeCommandStdin(id: string, data: Buffer, eof: boolean): Promise<void>;
  /** Its terminal's size; its programs get SIGWINCH. `not_running` once it has ended, `guest_protocol` where it has none. */
  resizeCommand(id: string, size: TerminalSize): Promise<void>;
  /** What is kept from `offset` on, at most `limit` bytes; of output that was dropped, from the first kept byte on. */
  commandLogs(id: string, offset: number, limit: number): Promise<CommandLogs>;
  /**
   * Output from `offset` on as it comes, until the command has ended; returns its last record. Aborting `signal` lets
   * go of the machine, also while nothing comes, and ends with the signal's reason. `no_capacity` past 16 followers.
   * A command on a terminal waits for its slowest follower; any other writes on, and the ring forgets.
   */
  followCommand(
    id: string,
    offset: number,
    signal?: AbortSignal,
  ): AsyncGenerator<CommandChunk, CommandRecord, undefined>;

  /** A byte stream to a TCP port on the machine's loopback. `connection_refused` where nothing listens. */
  connect(port: number): Promise<Duplex>;
}

/** Every way the runtime says no. `machines/` translates these, once, into what a caller may read. */
export type RuntimeErrorKind =
  | "not_found"
  | "already_exists"
  | "not_running"
  | "machine_died"
  | "interrupted"
  | "timeout"
  | "no_capacity"
  | "image_failed"
  | "host_unsupported"
  | "stale_generation"
  | "not_checkpointable"
  | "not_restorable"
  | "volume_missing"
  | "volume_in_use"
  | "connection_refused"
  // of files and processes inside
  | "path_not_found"
  | "is_directory"
  | "not_directory"
  | "exists"
  | "not_permitted"
  | "invalid_path"
  | "too_large"
  | "disk_full"
  | "too_many_processes"
  | "exec_failed"
  | "guest_protocol"
  | "failed";

/** `message` may be shown to a caller; `cause` and `details` are for the log. */
export class RuntimeError extends Error {
  readonly kind: RuntimeErrorKind;
  readonly details: Record<string, unknown>;

  constructor(
    kind: RuntimeErrorKind,
    message: string,
    options: { cause?: unknown; details?: Record<string, unknown> } = {},
  ) {
    super(message, { cause: options.cause });
    this.name = "RuntimeError";
    this.kind = kind;
    this.details = options.details ?? {};
  }
}
