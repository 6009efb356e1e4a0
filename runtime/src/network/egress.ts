/**
 * What serves restricted machines: a proxy, and a resolver beside it, that know what each machine may reach. The
 * network decides whose packets get to them and under which address; whoever makes them decides what they answer.
 */
import type { MachineId } from "../driver.ts";

export interface EgressDoor {
  /**
   * Listens on ports of `address` that are free and answers them; machines find the proxy at 10.0.0.1 and the port the
   * network was made with, and the resolver at 10.0.0.1 port 53, over UDP. `machineAt` says whose packets come from an
   * address: no machine can send under another's.
   */
  open(
    address: string,
    machineAt: (address: string) => MachineId | undefined,
  ): Promise<{ proxyPort: number; dnsPort: number }>;
  /** The machine at this address is restricted no more: all it has open ends, and its count begins anew. */
  shut(address: string): void;
  /** What was refused to the machine at this address since it was let in. */
  deniedCount(address: string): number;
  close(): Promise<void>;
}
