/** What every machine has inside of ours, whichever engine runs it: the guest program, its socket, and how names are found. */
import type { MachinePaths } from "./paths.ts";

export const GUEST_PROGRAM = "/.kontor/guest";
const GUEST_RUN_DIRECTORY = "/.kontor/run";
export const GUEST_ARGV = [GUEST_PROGRAM, `${GUEST_RUN_DIRECTORY}/guest.sock`];
export const VOLUME = "/persist";

/** `nameserver` is the host's end of every machine's veth; two tries of 2 s keep a closed door from hanging programs. */
export const RESOLV_CONF = "nameserver 10.0.0.1\noptions timeout:1 attempts:2\n";

export interface OurFiles {
  paths: Pick<MachinePaths, "guestDirectory">;
  guestBinary: string;
  resolvConf: string;
}

/** As mounts of an OCI spec. */
export function ourMounts({ paths, guestBinary, resolvConf }: OurFiles): Record<string, unknown>[] {
  return [
    bind(guestBinary, GUEST_PROGRAM),
    // Read-only: a directory of the host's that the guest could fill would be outside its disk limit.
    bind(paths.guestDirectory, GUEST_RUN_DIRECTORY),
    bind(resolvConf, "/etc/resolv.conf"),
  ];
}

export function bind(source: string, destination: string, access: "ro" | "rw" = "ro") {
  return { destination, type: "bind", source, options: ["bind", access, "nosuid"] };
}
