/**
 * Services for restricted machines: a proxy and a resolver, which know the allowed destinations of each
 * machine. The network decides whose packets reach them, and under which address. The implementation decides
 * about the replies.
 */
import type { MachineId } from "../driver.ts";

export interface EgressServices {
  /**
   * Listens on free ports of `address` and returns them. Machines reach the proxy at 10.0.0.1 and the
   * configured port, and the resolver at 10.0.0.1 port 53, over UDP. `machineAt` returns the machine behind
   * an address: no machine can send from another's address.
   */
  open(
    address: string,
    machineAt: (address: string) => MachineId | undefined,
  ): Promise<{ proxyPort: number; dnsPort: number }>;
  /** The machine at this address is no longer restricted: its connections end, and its count restarts. */
  closeConnections(address: string): void;
  /** Number of refusals for the machine at this address since it became restricted. */
  deniedCount(address: string): number;
  close(): Promise<void>;
}
