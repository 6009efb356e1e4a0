/**
 * The interface between Kontor and an isolation engine. Read this first.
 *
 * A driver boots machines from images, changes their limits, freezes, checkpoints and removes them. A driver returns a
 * `Guest`, the connection to PID 1 of a machine. A driver knows no sandboxes, owners or databases. A driver stores no
 * desired state: `list()` returns the machines that exist, and the caller compares them with its own rows.
 *
 * A verb is idempotent if its name allows it: `remove` of a missing machine succeeds, and so does `freeze` of
 * a frozen one. Every verb has a deadline and fails with a `RuntimeError`; none hangs.
 */
import type { Duplex, Readable } from "node:stream";

/**
 * `m` and 19 characters of `[a-z0-9]`. The length is fixed because runsc matches ids by prefix, so no id may be a
 * prefix of another.
 */
export type MachineId = string;

/**
 * `off`: no route. `restricted`: the egress proxy only. `open`: the internet, but never the host or private
 * ranges.
 */
export type NetworkMode = "off" | "restricted" | "open";

/** Limits of a machine. All except `diskBytes` can change while the machine runs. */
export interface Resources {
  /** Number of processor cores; fractions are allowed. */
  vcpus: number;
  /** Memory for the machine's processes. gVisor's own memory is added to it (cgroup/layout.ts). */
  memoryBytes: number;
  /** Limit of the machine's writes to its root disk; the guest gets ENOSPC beyond it. Fixed at create. */
  diskBytes: number;
  /**
   * Limit for each user inside. A native machine also counts threads, as Linux does: a Node process has about
   * eleven.
   */
  maxProcesses: number;
}

/**
 * Files that outlive machines, mounted at `/persist`. At most one machine has a volume at a time. Synced data
 * is on the host's disk.
 */
export interface VolumeSpec {
  /**
   * Directory that holds this volume alone. The directory is complete or absent, and only the driver knows its content.
   */
  directory: string;
  /** Capacity in bytes; the guest gets ENOSPC beyond it. Fixed once the volume is made. */
  sizeBytes: number;
  /** True makes an empty volume if none exists. False fails with `volume_missing` if none exists. */
  isNew: boolean;
}

/**
 * Private network of a machine, independent of its network mode. Machines of a group reach each other's
 * services over TCP, at an address of the service. No other machine reaches them. A machine without a group
 * reaches no machine.
 */
export interface PrivateNetwork {
  /**
   * Name of the group, whose machines reach each other's services. Opaque, 1 to 64 characters of
   * `[A-Za-z0-9_-]`.
   */
  group: string;
  /**
   * Service of the machine, from its start to its end. A machine that starts to serve an address takes it
   * over from the previous machine. The name is a DNS name that ends in `.internal`, and resolves within the
   * group alone. `address` comes from `serviceAddress` and outlives the machine. 1 to 16 TCP ports.
   */
  serves?: { name: string; address: string; ports: number[] };
}

/**
 * `gvisor`: its own kernel, for untrusted code. `native`: the host's kernel behind a user namespace, a system call
 * filter and eight capabilities, for programs that need the speed of that kernel. A native machine cannot be
 * checkpointed or captured.
 */
export type Isolation = "gvisor" | "native";

export interface MachineSpec {
  id: MachineId;
  /** Number of starts of the machine, on any host. Requests of an older generation are refused. */
  generation: number;
  /** Id of an image that `ensureImage`, `captureImage` or `importImage` made. */
  image: string;
  /** Fixed at create. Default `gvisor`. */
  isolation?: Isolation;
  resources: Resources;
  network: NetworkMode;
  hostname: string;
  /**
   * Base environment of every process, over the image's own; the environment of `spawn` overrides both. The environment
   * is never written to the host's disk, so `list` returns it empty for an adopted machine. The machine itself keeps
   * it.
   */
  env: Record<string, string>;
  /** Fixed at create: a machine in a warm pool cannot be given a volume. */
  volume?: VolumeSpec;
  /**
   * Fixed at create, and set again at restore, because a checkpoint does not contain it. A machine of a warm
   * pool has none.
   */
  privateNetwork?: PrivateNetwork;
}

/** Settings that change when a warm machine is claimed. All of them are applied before `claim` returns. */
export interface ClaimSpec {
  generation: number;
  resources: Omit<Resources, "diskBytes">;
  network: NetworkMode;
  /** A native machine keeps the hostname of its start; a claim with another hostname fails with `not_permitted`. */
  hostname: string;
  env: Record<string, string>;
}

/**
 * `running`: the guest responds. `frozen`: the cgroup freezer stops the machine, which uses no CPU. `dead`:
 * its processes ended (`exit` has the reason, if known), and `remove` deletes the rest.
 */
export type MachineState = "running" | "frozen" | "dead";

export interface Machine {
  id: MachineId;
  state: MachineState;
  /** Null if the driver found a machine without its record. */
  spec: MachineSpec | null;
  exit: MachineExit | null;
}

export interface MachineExit {
  /**
   * `out_of_memory`: the kernel killed the machine at its memory limit. `removed`: the driver removed the machine.
   * Usually only the largest process gets SIGKILL, and the machine continues. The kernel sends this SIGKILL in a native
   * machine, and PID 1 sends it in a gVisor machine.
   */
  reason: "out_of_memory" | "removed" | "failed";
  at: Date;
}

/**
 * A machine on disk, written by `checkpoint`: memory, processes and root disk. Each checkpoint has its own directory.
 * This object is its `manifest.json`, which is written last.
 */
export interface Checkpoint {
  /** Size of all files together, in bytes. */
  bytes: number;
  /** The hash is null if the checkpoint is not durable. */
  files: { name: string; bytes: number; sha256: string | null }[];
  /** The checkpoint restores only on a host whose `HostFacts` list this build and the same `cpuClass`. */
  runtimeBuild: string;
  cpuClass: string;
  /** Build of the guest program, PID 1 of the machine. The host keeps every build. */
  guestBuild: string;
  /** Size of the machine's /dev/shm. Absent in checkpoints of older servers, which had no limit. */
  sharedMemoryBytes?: number;
}

export interface CheckpointOptions {
  /** Writes with direct I/O, past the page cache. Default: the driver's choice. */
  direct?: boolean;
  /** Continues the machine after the checkpoint instead of leaving it frozen. */
  keepRunning?: boolean;
  /** False for a checkpoint that this process alone restores: it is neither hashed nor synced. */
  isDurable?: boolean;
}

/** A reading of the machine's cgroup. The caller derives rates from two readings. */
export interface MachineStats {
  /** Time of the CPU reading. */
  at: Date;
  cpuSeconds: number;
  /** The working set, without page cache that the kernel can drop. */
  memoryBytes: number;
  /** Tasks on the host: gVisor has about two for each process inside, and twenty for the machine itself. */
  processes: number;
  diskBytes: number;
  egressDenied: number;
  /**
   * Received bytes of its network slot, including those of earlier machines: only differences are meaningful.
   * Zero without a network.
   */
  networkRxBytes: number;
  networkTxBytes: number;
}

/** Usage of the filesystem that holds the machines' disks. */
export interface DiskUse {
  freeBytes: number;
  /**
   * Bytes that each machine's disk and volume occupy on this filesystem. A volume on another filesystem
   * counts zero.
   */
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
  /** Files next to the recipe, in the directory `from`. `contents` are read together with the recipe. */
  | { kind: "files"; from: string; into: string; contents?: Record<string, string> }
  /** Packages of the package-lock.json in this directory of the image. */
  | { kind: "npm-ci"; directory: string }
  | { kind: "run"; argv: string[] };

/**
 * A program that runs in every machine of an image from its start, and listens on a port of the machine's
 * loopback.
 */
export interface ImageService {
  /** Protocol and version that the service speaks: `kontor-code/2`. */
  speaks: string;
  argv: string[];
  port: number;
}

/** An image as data: steps in order, then commands whose output records the installed versions. */
export interface ImageRecipe {
  name: string;
  /** Versions that the image's name promises, for example `python 3.12`. */
  promise: Record<string, string>;
  /**
   * Alternatives, each with a list of steps; the first that succeeds is used. All but the first are
   * substitutes.
   */
  ways: { steps: ImageStep[]; substitute: boolean }[];
  env: Record<string, string>;
  /** name of the content → argv of a command that prints its version */
  probes: Record<string, string[]>;
  service?: ImageService;
  /** True adds the ordinary user `user`. An image on which other images are based never has this user. */
  user?: boolean;
}

export interface Image {
  id: string;
  name: string;
  /** Id of the image of the captured machine. Absent if the image was made from a recipe. */
  base?: string;
  sizeBytes: number;
  env: Record<string, string>;
  /** name → version, as the recipe's probes reported it */
  contents: Record<string, string>;
  /** True if the image differs from its name's promise (Python 3.13 under the name python-3.12). */
  substituted: boolean;
  /** Installed version, if it differs from the promised version. Absent otherwise, and in images of older servers. */
  substitute?: string;
  /** Service of its recipe, or of the image that it is based on. */
  service: ImageService | null;
  createdAt: Date;
}

/** A network namespace for programs of the host: `nsenter --net=<netnsPath>`. */
export interface LentNetwork {
  netnsPath: string;
  /** Address of the resolver in the namespace. */
  resolver: string;
  /** Ends the loan. No process may be left in the namespace. */
  release(): Promise<void>;
}

/** An image whose files belong to another component. */
export interface LayeredImage {
  /** Id that the caller chooses: lower case letters, digits, `_`, `.` and `-`. */
  id: string;
  name: string;
  /** Absolute directories on this host, the lowest first, at most 100. The driver only reads them. */
  layers: string[];
  env: Record<string, string>;
  sizeBytes: number;
}

/** `fraction` is the completed share of all work, from 0 to 1. `step` describes the current step for a reader. */
export type Progress = (p: { fraction: number; step: string }) => void;

export interface HostFacts {
  driver: string;
  kernel: string;
  cgroup: "v1" | "v2" | "none";
  vcpus: number;
  memoryBytes: number;
  diskFreeBytes: number;
  /** Build of the engine that starts new machines. */
  runtimeBuild: string;
  /** Builds that can restore a checkpoint, `runtimeBuild` included. */
  runtimeBuilds: readonly string[];
  cpuClass: string;
}

export interface Driver {
  readonly name: "linux" | "fake";

  /** Prepares the host for the driver (tables, cgroups, sockets) and adopts running machines. */
  open(): Promise<void>;
  /**
   * Releases the host's resources without touching a machine: machines run on, and the next `open` adopts
   * them.
   */
  close(): Promise<void>;

  facts(): Promise<HostFacts>;
  /** Removes the builds of the engine that neither a machine nor `neededBuilds` needs. */
  pruneRuntimes(neededBuilds: readonly string[]): Promise<void>;
  list(): Promise<Machine[]>;

  /** Makes an image unless it exists. Two concurrent callers share one build. */
  ensureImage(recipe: ImageRecipe, progress?: Progress): Promise<Image>;
  images(): Promise<Image[]>;
  /**
   * Makes an image of a machine's current files, with the environment and contents of the machine's image. Every
   * process inside except PID 1 is killed first; the machine continues. The image has files, directories and links
   * only, with any owner. Fails with `already_exists` for an id in use, and with `image_failed` if the files exceed the
   * size of the machine's disk. A sparse file counts with its stated size. A failure leaves no image.
   */
  captureImage(
    id: MachineId,
    image: { id: string; name: string },
    options: { timeoutMs: number },
  ): Promise<Image>;
  /**
   * Makes an image of directories that another component owns: layers of a container image, in the format of overlayfs.
   * The directories must stay unchanged until `removeImage`. Machines of either isolation can run it. Fails with
   * `already_exists` for an id in use, and with `image_failed` for layers that cannot be stacked.
   */
  importImage(image: LayeredImage): Promise<Image>;
  /**
   * Removes an image, or succeeds if it is missing. The caller must ensure that no machine and no checkpoint
   * needs it.
   */
  removeImage(id: string): Promise<void>;

  /**
   * Lends a namespace of the machines' network, with the routes of `mode`, to a program that is no machine.
   * The loan ends with `release`, or when the driver is opened again.
   */
  lendNetwork(mode: NetworkMode): Promise<LentNetwork>;

  /** Boots a machine, and resolves when its guest responds. A failed create leaves nothing on the host. */
  create(spec: MachineSpec): Promise<void>;
  /** Thaws a warm machine and applies the claim. Safe to repeat with the same spec. */
  claim(id: MachineId, spec: ClaimSpec): Promise<void>;
  setNetwork(id: MachineId, mode: NetworkMode): Promise<void>;
  setResources(id: MachineId, resources: Omit<Resources, "diskBytes">): Promise<void>;
  freeze(id: MachineId): Promise<void>;
  thaw(id: MachineId): Promise<void>;
  /**
   * Ends the machine and deletes everything it had on this host. Works in every state, also for dead
   * machines.
   */
  remove(id: MachineId): Promise<void>;
  stats(id: MachineId): Promise<MachineStats>;

  /** Returns the free bytes of the host's disk, and the bytes that machines occupy, dead machines included. */
  diskUse(): Promise<DiskUse>;

  /** Bytes that the files of a volume occupy, attached or not. Zero if it was never made. */
  volumeUsage(directory: string): Promise<number>;

  /**
   * Writes the whole machine to `directory`, which must not exist. The files are written to a temporary
   * directory, hashed and synced before the rename. The machine stays frozen, and its connections end.
   * `remove` then frees its memory, or `thaw` continues it. With `keepRunning`, it continues as soon as its
   * bytes are written, before they are hashed. New requests wait meanwhile, and requests in flight fail with
   * `interrupted`. A failure leaves the machine running, and no directory. Fails with `not_checkpointable`
   * for a machine whose state cannot be saved: `details` are `{ pid, process, file }`. A checkpoint does not
   * contain the volume, but syncs it.
   */
  checkpoint(id: MachineId, directory: string, options?: CheckpointOptions): Promise<Checkpoint>;
  /**
   * Boots a machine from a checkpoint, which stays unchanged. Files and processes are as in the checkpoint; limits,
   * network, hostname, environment and volume come from this spec. The id may differ from the checkpointed machine's
   * id, but the image may not. Resolves when the guest responds; a failed restore leaves nothing on the host. Fails
   * with `not_restorable` if the checkpoint is damaged, or comes from another runtime build or another class of
   * processors.
   */
  restore(spec: MachineSpec, directory: string): Promise<void>;

  /** Returns the connection to PID 1. Cheap. Fails with `not_found` if there is no such machine. */
  guest(id: MachineId): Guest;
  /** Calls `listener` once for every machine that ends, for any reason. */
  onExit(listener: (id: MachineId, exit: MachineExit) => void): void;
}

/** A process to start inside. Exactly one of `argv` and `shell` is set. */
export interface SpawnSpec {
  argv?: string[];
  /** Script for `/bin/bash -c`, or for `/bin/sh -c` if the image has no bash. */
  shell?: string;
  cwd?: string;
  env?: Record<string, string>;
  /** A name or a number. Default root. */
  user?: string;
  /** Age at which the whole process group gets SIGKILL. */
  timeoutMs?: number;
  /** Effect on the process when this connection ends: a streamed exec is killed with it. */
  onDisconnect: "kill" | "run_on";
}

/**
 * Exactly one of `code` and `signal` is a number. `outOfMemory`: this process, or another one of its session,
 * was killed because the machine's processes exceeded its memory. `durationUs` is measured inside, from fork
 * to exit.
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

/** Output is pulled: unread output blocks the process, not the server. */
export interface GuestProcess {
  readonly pid: number;
  readonly output: AsyncIterable<OutputChunk>;
  /** Resolves or rejects after the last chunk was read. */
  readonly exit: Promise<ProcessExit>;
  writeStdin(data: Buffer): Promise<void>;
  endStdin(): void;
  signal(signal: number): void;
  /** Closes the connection. `onDisconnect` determines whether the process is killed. */
  close(): void;
}

/** A background command to start. The command has no connection, and the machine keeps its output. */
export interface CommandSpec extends Omit<SpawnSpec, "onDisconnect"> {
  /** Id that the caller chooses, unique in this machine: 1 to 64 bytes. */
  id: string;
  /** Label of the command, at most 256 bytes. */
  tag?: string;
  /** Runs the command on a terminal of this size. Stdout and stderr are then one stream, `stdout`. */
  terminal?: TerminalSize;
}

/** Size of a terminal in characters; each number is at most 65535. */
export interface TerminalSize {
  cols: number;
  rows: number;
}

/** A background command, as its machine records it. */
export interface CommandRecord {
  id: string;
  tag: string;
  /** The shell script, or argv joined by spaces; at most 4095 bytes. */
  text: string;
  /** `killed` for a command that ended after `killCommand`, with any exit. */
  status: "running" | "exited" | "killed";
  pid: number;
  exitCode: number | null;
  signal: number | null;
  timedOut: boolean;
  /** The same as in `ProcessExit`. */
  outOfMemory: boolean;
  startedAt: Date;
  endedAt: Date | null;
  /** Bytes of all output so far; the first `droppedBytes` are no longer kept. */
  outputBytes: number;
  droppedBytes: number;
  /** Current size of the terminal, or null if the command has no terminal. */
  terminal: TerminalSize | null;
}

export interface CommandChunk extends OutputChunk {
  /** Position of the first byte of `data` in all output of the command. */
  offset: number;
}

export interface CommandLogs {
  chunks: CommandChunk[];
  /** Offset of the next read. */
  nextOffset: number;
  command: CommandRecord;
}

export interface FileStat {
  isDir: boolean;
  sizeBytes: number;
  /** Permission bits only. */
  mode: number;
  modifiedAt: Date;
  /** Null if the guest is an older build, which does not report owners. */
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
  /** Largest number of entries, at most 10,001. */
  limit: number;
  after?: string | undefined;
}

/**
 * A change below a watched directory. `overflow` replaces changes that were lost because they came faster than they
 * were read. The reader must then list the directory.
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

/** Directories that allow changes: the path, with every symlink followed, must be below one of them. */
export interface Within {
  roots: string[];
}

export interface Guest {
  ping(): Promise<void>;
  spawn(spec: SpawnSpec): Promise<GuestProcess>;

  /**
   * Streams a file without holding it in memory, from `offset` (default 0) and at most `length` bytes. Fails
   * with `is_directory`, `path_not_found`, or `too_large` if the file is larger than `maxBytes`.
   */
  readFile(path: string, options?: ReadOptions): Promise<{ stat: FileStat; content: Readable }>;
  /**
   * Writes to a temporary file that is then renamed: a reader sees the old file or the new one. Creates
   * missing parents.
   */
  writeFile(
    path: string,
    content: Buffer | AsyncIterable<Buffer>,
    options: { mode: number } & Within,
  ): Promise<{ sizeBytes: number }>;
  /** Lists a directory. Without a page, the order is undefined, and more than 10,000 entries fail with `too_large`. */
  list(path: string, page?: ListPage): Promise<DirEntry[]>;
  /** Describes a path. Returns undefined if the path does not exist. */
  stat(path: string): Promise<FileStat | undefined>;
  mkdir(path: string, options: { mode: number; parents: boolean } & Within): Promise<void>;
  move(from: string, to: string, options: { overwrite: boolean } & Within): Promise<void>;
  /**
   * Fails with `is_directory` for a directory unless `recursive` is set. A tree deeper than 256 directories
   * fails with `too_large`, after a part of it may have been deleted.
   */
  remove(path: string, options: { recursive?: boolean } & Within): Promise<void>;

  /**
   * Reports changes in a directory, and with `recursive` in all directories below it, from the moment the call
   * resolves. The caller must read the changes as they arrive. The stream ends when the directory is gone. Aborting
   * `signal` releases the connection, and ends the stream with the signal's reason. Fails with `not_directory`, with
   * `too_large` beyond 8192 directories, and with `no_capacity` beyond 16 watches of the machine.
   */
  watch(
    path: string,
    options: { recursive: boolean; signal: AbortSignal },
  ): Promise<AsyncIterable<FileChange>>;

  /**
   * Starts a process that outlives every connection and this server. A ring buffer of 16 MiB in the machine keeps its
   * output. Fails with `exists` for an id in use, with `too_many_processes` while 128 commands run, or 16 on terminals,
   * and as `spawn` does.
   */
  startCommand(spec: CommandSpec): Promise<{ pid: number }>;
  /** Returns the commands, newest first. Finished commands are dropped beyond 100, or beyond 64 MiB of kept output. */
  listCommands(): Promise<CommandRecord[]>;
  /**
   * Fails with `not_found` for a command that the machine does not know or no longer knows, like all methods
   * below.
   */
  getCommand(id: string): Promise<CommandRecord>;
  /**
   * Sends SIGTERM to the group now, and SIGKILL after 5 s. Does nothing for a command that ended. On a
   * terminal, sends SIGHUP to the session instead. Returns the current record.
   */
  killCommand(id: string): Promise<CommandRecord>;
  /** Signals the group of a running command. Does nothing for a command that ended. */
  signalCommand(id: string, signal: number): Promise<void>;
  /**
   * Writes to the command's stdin. Fails with `not_running` if the command ended or closed stdin, and with `timeout` if
   * the command does not read the data.
   */
  writeCommandStdin(id: string, data: Buffer, eof: boolean): Promise<void>;
  /**
   * Sets the size of the terminal; its programs get SIGWINCH. Fails with `not_running` if the terminal is
   * closed, and with `guest_protocol` if the command has none.
   */
  resizeCommand(id: string, size: TerminalSize): Promise<void>;
  /**
   * Returns kept output from `offset` on, at most `limit` bytes. If the output at `offset` was dropped, the result
   * starts at the first kept byte.
   */
  commandLogs(id: string, offset: number, limit: number): Promise<CommandLogs>;
  /**
   * Yields output from `offset` on as it arrives, until the command has ended. Returns the last record. Aborting
   * `signal` releases the connection even without output, and ends with the signal's reason. Fails with `no_capacity`
   * beyond 16 followers. A command on a terminal waits for its slowest follower. Any other command continues to write,
   * and the ring buffer drops the oldest output.
   */
  followCommand(
    id: string,
    offset: number,
    signal?: AbortSignal,
  ): AsyncGenerator<CommandChunk, CommandRecord, undefined>;

  /**
   * Opens a byte stream to a TCP port on the machine's loopback. Fails with `connection_refused` if nothing
   * listens.
   */
  connect(port: number): Promise<Duplex>;
}

/** Errors of the runtime. `machines/` translates them into errors for clients. */
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
  // errors of files and processes inside
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

/** A client may read `message`; `cause` and `details` are for the log. */
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
