import { expect, test } from "vitest";
import { parseCounts } from "./machines.ts";

test("counts machines by owner and state", () => {
  const text = [
    "# HELP kontor_machines Machines of this host.",
    'kontor_machines{owner="pool",state="ready"} 2',
    'kontor_machines{owner="pool",state="starting"} 1',
    'kontor_machines{owner="sandbox",state="ready"} 5',
    'kontor_machines{owner="sandbox",state="going"} 3',
    'kontor_pool_wanted{pool="debian-12/small"} 3',
    'kontor_pool_wanted{pool="node-22/small"} 1',
    "process_cpu_seconds_total 12",
  ].join("\n");
  expect(parseCounts(text)).toEqual({ warm: 2, wanted: 4, sandboxes: 5, moving: 4 });
});
