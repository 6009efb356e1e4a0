/** The private network of a group's machines, as owners ask for it: the runtime's words, handed on. */
export { serviceAddress } from "@kontor/runtime/network/addresses.ts";
export type { PrivateNetwork } from "@kontor/runtime/driver.ts";
