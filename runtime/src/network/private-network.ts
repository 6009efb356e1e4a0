/** Checks a machine's private network before any part of the machine is made. */
import { RuntimeError, type MachineSpec } from "../driver.ts";

const GROUP = /^[A-Za-z0-9_-]{1,64}$/;
const LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?";
const NAME = new RegExp(`^(${LABEL}\\.)+internal$`);
const SERVICE_ADDRESS = /^198\.19\.(\d{1,3})\.(\d{1,3})$/;
/** Longest name in DNS (RFC 1035 §2.3.4), without the length and root bytes. */
const MAX_NAME_LENGTH = 253;
/** Largest number of ports of a service. Each port is an element of the sets in which every packet is looked up. */
const MAX_PORTS = 16;

/** Fails with `failed`, and names the invalid field. */
export function checkPrivateNetwork({ privateNetwork }: Pick<MachineSpec, "privateNetwork">): void {
  if (privateNetwork === undefined) return;
  const { group, serves } = privateNetwork;
  if (!GROUP.test(group)) throw wrong("group", group, "1 to 64 of A-Z, a-z, 0-9, _ and -");
  if (serves === undefined) return;
  const { name, address, ports } = serves;
  if (name.length > MAX_NAME_LENGTH || !NAME.test(name)) {
    throw wrong("name", name, "a host name in lower case that ends in .internal");
  }
  if (!isServiceAddress(address)) throw wrong("address", address, "one that serviceAddress gives");
  const isPort = (port: number) => Number.isInteger(port) && port > 0 && port < 65_536;
  if (ports.length === 0 || ports.length > MAX_PORTS || !ports.every(isPort)) {
    throw wrong("ports", ports.join(", "), `1 to ${MAX_PORTS} numbers from 1 to 65535`);
  }
}

function isServiceAddress(address: string): boolean {
  const bytes = SERVICE_ADDRESS.exec(address)?.slice(1);
  if (bytes === undefined || bytes.some((byte) => String(Number(byte)) !== byte || Number(byte) > 255))
    return false;
  return address !== "198.19.0.0" && address !== "198.19.255.255";
}

function wrong(field: string, is: string, should: string): RuntimeError {
  return new RuntimeError("failed", `privateNetwork.${field} is "${is}" and must be ${should}`);
}
