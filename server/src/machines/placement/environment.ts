/** Environment variables that describe the network to a machine's processes. */
import type { NetworkMode } from "@kontor/runtime/driver.ts";

/** Address of the egress proxy, the same for every restricted machine. */
const PROXY = "http://10.0.0.1:3128";
const OWN_HOSTS = "localhost,127.0.0.1";
/**
 * Names of the proxy variables: curl and apt read the lower-case names, other programs the upper-case ones. Node reads
 * both, if it is configured to.
 */
const proxyEnv = {
  HTTPS_PROXY: PROXY,
  HTTP_PROXY: PROXY,
  NO_PROXY: OWN_HOSTS,
  https_proxy: PROXY,
  http_proxy: PROXY,
  no_proxy: OWN_HOSTS,
  NODE_USE_ENV_PROXY: "1",
};

export function networkEnv(network: NetworkMode): Record<string, string> {
  return network === "restricted" ? proxyEnv : {};
}
