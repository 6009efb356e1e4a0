/** Image and size of a machine. Machines of one shape are interchangeable and share a pool. */
import type { Resources } from "@kontor/runtime/driver.ts";

export interface Shape {
  /** Template name and size, `debian-12/small`. Empty if machines of this shape are never pooled. */
  poolKey: string;
  /** Name of an image that this host can make, or the id of a built image. */
  template: string;
  resources: Resources;
}
