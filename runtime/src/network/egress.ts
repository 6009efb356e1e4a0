/**
 * Services for restricted machines: a proxy and a resolver, which know the allowed destinations of each machine. The
 * network determines which machines reach these services, and under which address. The implementation determines the
 * replies.
 */
import type { MachineId } from "../driver.ts";

export interface EgressServices {
  /**
   * Listens on free ports of `address` and returns them. Machines reach the proxy at 10.0.0.1 and the configured port,
   * and the resolver at 10.0.0.1 port 53, over UDP. `machineAt` returns the machine with an address: no machine can
   * send from another machine's address.
   */
  open(
    address: string,
    machineAt: (address: string) => MachineId | undefined,
  ): Promise<{ proxyPort: number; dnsPort: number }>;
  /**
   * Called when the machine at this address is no longer restricted: its connections end, and its count of refusals
   * restarts.
   */
  closeConnections(address: string): void;
  /** Returns the number of refusals for the machine at this address since it became restricted. */
  deniedCount(address: string): number;
  close(): Promise<void>;
}
