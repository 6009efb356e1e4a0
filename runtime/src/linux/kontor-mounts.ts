/** Kontor's own files in every machine, for any engine: the guest program, its socket, and resolv.conf. */
import type { MachinePaths } from "./paths.ts";

export const GUEST_PROGRAM = "/.kontor/guest";
const GUEST_RUN_DIRECTORY = "/.kontor/run";
export const GUEST_ARGV = [GUEST_PROGRAM, `${GUEST_RUN_DIRECTORY}/guest.sock`];
export const VOLUME = "/persist";

/**
 * `nameserver` is the host's end of every machine's veth. Two tries within 2 s keep programs from hanging on a resolver
 * without replies.
 */
export const RESOLV_CONF = "nameserver 10.0.0.1\noptions timeout:1 attempts:2\n";

export interface KontorFiles {
  paths: Pick<MachinePaths, "guestDirectory">;
  guestBinary: string;
  resolvConf: string;
}

/** Returns Kontor's mounts for an OCI spec. */
export function kontorMounts({ paths, guestBinary, resolvConf }: KontorFiles): Record<string, unknown>[] {
  return [
    bind(guestBinary, GUEST_PROGRAM),
    // Read-only: a guest could fill a writable directory of the host beyond its disk limit.
    bind(paths.guestDirectory, GUEST_RUN_DIRECTORY),
    bind(resolvConf, "/etc/resolv.conf"),
  ];
}

export function bind(source: string, destination: string, access: "ro" | "rw" = "ro") {
  return { destination, type: "bind", source, options: ["bind", access, "nosuid"] };
}
