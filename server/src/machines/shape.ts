/** What a machine is made of, before anybody owns it. Machines of one shape are interchangeable and share a pool. */
import type { Resources } from "@kontor/runtime/driver.ts";

export interface Shape {
  /** Template name and size, `debian-12/small`. */
  poolKey: string;
  template: string;
  resources: Resources;
}
