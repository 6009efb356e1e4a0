/** What a machine is made of, before anybody owns it. Machines of one shape are interchangeable and share a pool. */
import type { Resources } from "@kontor/runtime/driver.ts";

export interface Shape {
  /** Template name and size, `debian-12/small`. Empty where machines of this shape are never kept waiting. */
  poolKey: string;
  /** Name of an image that this host knows how to make, or the id of one that was built. */
  template: string;
  resources: Resources;
}
