/** Checks whether a port is free, and which process uses it otherwise. */
import { readFileSync, readdirSync, readlinkSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";

export function isPortFree(port: number, host: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once("error", () => resolve(false));
    probe.listen({ port, host, exclusive: true }, () => probe.close(() => resolve(true)));
  });
}

/** Returns a loopback port that is free at this moment. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as AddressInfo;
      probe.close(() => resolve(port));
    });
  });
}

/**
 * Returns the inodes of the sockets that listen on a port, from the text of /proc/net/tcp or tcp6 (proc_net_tcp in the
 * kernel documentation).
 */
export function listeningInodes(procNetTcp: string, port: number): string[] {
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, "0")}`;
  return procNetTcp
    .split("\n")
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[1]?.endsWith(suffix) && fields[3] === "0A")
    .flatMap((fields) => fields[9] ?? []);
}

/**
 * Returns the process that listens on a port, such as `nginx: master process (pid 123)`. Undefined if the process
 * cannot be read.
 */
export function portOwner(port: number): string | undefined {
  const inodes = ["/proc/net/tcp", "/proc/net/tcp6"].flatMap((file) => {
    const text = tryRead(() => readFileSync(file, "utf8"));
    return text ? listeningInodes(text, port) : [];
  });
  const wanted = new Set(inodes.map((inode) => `socket:[${inode}]`));
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    const descriptors = tryRead(() => readdirSync(`/proc/${pid}/fd`)) ?? [];
    if (!descriptors.some((fd) => wanted.has(tryRead(() => readlinkSync(`/proc/${pid}/fd/${fd}`)) ?? "")))
      continue;
    const command = tryRead(() => readFileSync(`/proc/${pid}/cmdline`, "utf8"))
      ?.replaceAll("\0", " ")
      .trim();
    return `${command?.slice(0, 100)} (pid ${pid})`;
  }
  return undefined;
}

function tryRead<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
