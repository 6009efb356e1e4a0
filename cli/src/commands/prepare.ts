/**
 * `kontor prepare`: runs the set-up of `kontor up` for this directory of code, without a server. `kontor upgrade` calls
 * it.
 */
import { aptStep } from "../setup/apt.ts";
import { hostLimitsStep } from "../setup/host-limits.ts";
import { nativeStep } from "../setup/native.ts";
import { serverPackages } from "../setup/packages.ts";
import { setUp } from "../setup/setup.ts";

export async function prepare(): Promise<void> {
  await setUp([aptStep(serverPackages), nativeStep, hostLimitsStep()]);
}
