/** The private network of a group's machines, for their owners; re-exported from the runtime. */
export { serviceAddress } from "@kontor/runtime/network/addresses.ts";
export type { PrivateNetwork } from "@kontor/runtime/driver.ts";
