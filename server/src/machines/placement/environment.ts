/** What a machine's processes must know of its network. */
import type { NetworkMode } from "@kontor/runtime/driver.ts";

/** Where a restricted machine finds the egress proxy, whichever machine it is. */
const PROXY = "http://10.0.0.1:3128";
const OWN_HOSTS = "localhost,127.0.0.1";
/** curl and apt read the lower-case names, others the upper-case ones; Node reads either once it is told to. */
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
