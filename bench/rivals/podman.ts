/**
 * The rival: `podman run --runtime runsc` (or `runc`) and `podman exec` on the same root filesystem, without a server.
 * The storage is a temporary directory and the network a temporary namespace, so that nothing is left.
 *
 * `--ulimit`: podman's defaults need CAP_SYS_RESOURCE, which many virtual machines lack. The runtime runsc is a
 * wrapper. On kernels from 6.17 on, runsc treats every network namespace as the host's, because each has
 * /proc/sys/net/core/rmem_default; the wrapper hides that file. The wrapper also keeps runsc from writing cgroups,
 * because conmon has written them.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { measureTime } from "../support/measure.ts";

const image = "localhost/kontor-bench/rootfs:1";

const wrapper = (network: string) => `#!/bin/sh
exec unshare -m --propagation unchanged sh -c '
  mount --make-private /proc 2>/dev/null
  mount -t tmpfs -o ro none /proc/sys/net
  exec runsc --platform=systrap --network=${network} --ignore-cgroups "$@"' sh "$@"
`;

/**
 * Network of a container. `bridge` is podman's default and equals a sandbox: an address and internet access. `none` has
 * neither.
 */
export type PodmanNetwork = "bridge" | "none";

export class Podman {
  readonly #engine: "runsc" | "runc";
  readonly #folder: string;
  readonly #namespace: string;
  #count = 0;

  /** Opens podman for a root filesystem. Returns undefined if podman is not installed. */
  static async open(rootfs: string, engine: "runsc" | "runc" = "runsc"): Promise<Podman | undefined> {
    const found = await run(["podman", "--version"]).catch(() => undefined);
    if (!found) return undefined;
    const podman = new Podman(engine, mkdtempSync(join(tmpdir(), "kontor-bench-podman-")));
    try {
      await podman.#setUp(rootfs);
    } catch (error) {
      await podman.close();
      throw error;
    }
    return podman;
  }

  private constructor(engine: "runsc" | "runc", folder: string) {
    this.#engine = engine;
    this.#folder = folder;
    this.#namespace = `kbench-${process.pid}`;
  }

  /** Returns the milliseconds from `podman run` to the output of the first command. */
  async runAndExec(network: PodmanNetwork, command: string): Promise<number> {
    const name = `kbench-${(this.#count += 1)}`;
    try {
      const { ms } = await measureTime(async () => {
        await this.#podman(
          network,
          "run",
          "--detach",
          "--name",
          name,
          "--pull=never",
          ...limits(network),
          image,
          "sleep",
          "600",
        );
        const { stdout } = await this.#podman(network, "exec", name, "/bin/bash", "-c", command);
        if (stdout === "") throw new Error("podman exec printed nothing");
      });
      return ms;
    } finally {
      await this.#podman(network, "rm", "--force", "--time=0", name);
    }
  }

  /** Returns the milliseconds of each `podman start` of one existing container, to the end of its command's output. */
  async startAgain(network: PodmanNetwork, command: string, times: number): Promise<number[]> {
    const name = `kbench-${(this.#count += 1)}`;
    const made = ["--name", name, "--pull=never", ...limits(network), image, "/bin/bash", "-c", command];
    await this.#podman(network, "create", ...made);
    try {
      const taken: number[] = [];
      for (let n = 0; n < times; n += 1) {
        const { ms, result } = await measureTime(() => this.#podman(network, "start", "--attach", name));
        if (result.stdout === "") throw new Error("podman start printed nothing");
        taken.push(ms);
      }
      return taken;
    } finally {
      await this.#podman(network, "rm", "--force", "--time=0", name);
    }
  }

  async close(): Promise<void> {
    await this.#podman("none", "rm", "--force", "--all", "--time=0").catch(() => {});
    await this.#podman("none", "rmi", "--force", "--all").catch(() => {});
    await run(["ip", "netns", "delete", this.#namespace]).catch(() => {});
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #setUp(rootfs: string): Promise<void> {
    for (const network of this.#engine === "runsc" ? (["bridge", "none"] as const) : []) {
      writeFileSync(this.#runtime(network), wrapper(network === "bridge" ? "sandbox" : "none"), {
        mode: 0o755,
      });
    }
    await run(["ip", "netns", "add", this.#namespace]);
    const archive = join(this.#folder, "rootfs.tar");
    await run(["tar", "--create", "--file", archive, "--directory", rootfs, "."], { timeoutMs: 120_000 });
    await this.#podman("none", "import", "--quiet", archive, image);
    rmSync(archive);
  }

  #runtime(network: PodmanNetwork): string {
    return this.#engine === "runc" ? "runc" : join(this.#folder, `runsc-${network}`);
  }

  #podman(network: PodmanNetwork, ...args: string[]) {
    const storage = ["--root", join(this.#folder, "storage"), "--runroot", join(this.#folder, "run")];
    const engine = [
      "--storage-driver",
      "overlay",
      "--cgroup-manager",
      "cgroupfs",
      "--runtime",
      this.#runtime(network),
    ];
    return run(["nsenter", `--net=/run/netns/${this.#namespace}`, "podman", ...storage, ...engine, ...args], {
      timeoutMs: 120_000,
    });
  }
}

function limits(network: PodmanNetwork): string[] {
  const ulimits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"];
  return network === "none" ? [...ulimits, "--network=none"] : ulimits;
}
