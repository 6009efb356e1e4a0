import { expect, test } from "vitest";
import type { Isolation } from "../driver.ts";
import { flatValue, freezerFiles, headroomBytes, limitWrites, parseLayout } from "./layout.ts";

const hybrid = [
  "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
  "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
  "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct",
  "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
  "37 31 0:34 / /sys/fs/cgroup/freezer rw shared:3 - cgroup cgroup rw,freezer",
  "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids",
  "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd",
  "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
].join("\n");
const unified = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
const resources = { vcpus: 0.5, memoryBytes: 268_435_456, maxProcesses: 100 };

test("finds the controllers of a hybrid host on v1, each in its own tree", () => {
  const layout = parseLayout(hybrid);
  expect(layout).toMatchObject({
    version: "v1",
    trees: { memory: "/sys/fs/cgroup/memory", pids: "/sys/fs/cgroup/pids" },
  });
  expect(layout?.allTrees).toContain("/sys/fs/cgroup/systemd");
});

test("finds controllers that share a tree", () => {
  const layout = parseLayout(
    hybrid.replace("/cgroup/cpu rw - cgroup cgroup rw,cpu", "/cgroup/x rw - cgroup cgroup rw,cpu,cpuacct"),
  );
  expect(layout?.trees.cpu).toBe("/sys/fs/cgroup/x");
});

test("detects v2 on a host with only the unified tree", () => {
  expect(parseLayout(unified)).toMatchObject({ version: "v2", trees: { freezer: "/sys/fs/cgroup" } });
});

test("rejects a host without cgroups or without a controller", () => {
  expect(parseLayout(hybrid.replace("rw,pids", "rw,misc"))).toBeUndefined();
  expect(parseLayout("")).toBeUndefined();
});

test("writes v1 limits so that memory+swap is never below memory", () => {
  expect(limitWrites(parseLayout(hybrid)!, "/kontor0/m1", resources, "gvisor")).toEqual([
    { path: "/sys/fs/cgroup/memory/kontor0/m1/memory.memsw.limit_in_bytes", value: "-1", optional: true },
    { path: "/sys/fs/cgroup/memory/kontor0/m1/memory.limit_in_bytes", value: "545259520" },
    {
      path: "/sys/fs/cgroup/memory/kontor0/m1/memory.memsw.limit_in_bytes",
      value: "545259520",
      optional: true,
    },
    { path: "/sys/fs/cgroup/cpu/kontor0/m1/cpu.cfs_burst_us", value: "0", optional: true },
    { path: "/sys/fs/cgroup/cpu/kontor0/m1/cpu.cfs_period_us", value: "100000" },
    { path: "/sys/fs/cgroup/cpu/kontor0/m1/cpu.cfs_quota_us", value: "50000" },
    { path: "/sys/fs/cgroup/cpu/kontor0/m1/cpu.cfs_burst_us", value: "50000", optional: true },
    { path: "/sys/fs/cgroup/pids/kontor0/m1/pids.max", value: "656" },
  ]);
});

test("writes v2 limits to the unified tree, with swap off", () => {
  expect(limitWrites(parseLayout(unified)!, "/kontor0/m1", resources, "gvisor")).toEqual([
    { path: "/sys/fs/cgroup/kontor0/m1/memory.max", value: "545259520" },
    { path: "/sys/fs/cgroup/kontor0/m1/memory.swap.max", value: "0", optional: true },
    { path: "/sys/fs/cgroup/kontor0/m1/memory.oom.group", value: "1", optional: true },
    { path: "/sys/fs/cgroup/kontor0/m1/cpu.max.burst", value: "0", optional: true },
    { path: "/sys/fs/cgroup/kontor0/m1/cpu.max", value: "50000 100000" },
    { path: "/sys/fs/cgroup/kontor0/m1/cpu.max.burst", value: "50000", optional: true },
    { path: "/sys/fs/cgroup/kontor0/m1/pids.max", value: "656" },
  ]);
});

test("gives a started gVisor machine headroom above its size, and none to a new or a native machine", () => {
  const memoryOf = (...of: [isolation: Isolation, headroom?: number]) =>
    limitWrites(parseLayout(unified)!, "/kontor0/m1", resources, ...of)[0]?.value;
  expect(memoryOf("gvisor")).toBe(
    String(resources.memoryBytes + headroomBytes(resources.memoryBytes, "gvisor")),
  );
  expect(memoryOf("gvisor", 0)).toBe(String(resources.memoryBytes));
  expect(memoryOf("native")).toBe(String(resources.memoryBytes));
});

test("limits an out-of-memory kill to one process of a native machine, but kills a gVisor machine as a whole", () => {
  const groupOf = (isolation: Isolation) =>
    limitWrites(parseLayout(unified)!, "/kontor0/m1", resources, isolation).find(({ path }) =>
      path.endsWith("memory.oom.group"),
    )?.value;
  expect(groupOf("native")).toBe("0");
  expect(groupOf("gvisor")).toBe("1");
});

test("does not report a group as frozen while it is freezing", () => {
  const v1 = freezerFiles(parseLayout(hybrid)!, "/kontor0/m1");
  expect(v1.isFrozen.test("FREEZING\n")).toBe(false);
  expect(v1.isFrozen.test("FROZEN\n")).toBe(true);
  const v2 = freezerFiles(parseLayout(unified)!, "/kontor0/m1");
  expect(v2.isFrozen.test("populated 1\nfrozen 0\n")).toBe(false);
  expect(v2.isFrozen.test("populated 1\nfrozen 1\n")).toBe(true);
});

test("matches a whole key, not a prefix of a key", () => {
  expect(flatValue("oom_kill_disable 1\nunder_oom 0\noom_kill 2\n", "oom_kill")).toBe(2);
  expect(flatValue("oom_kill_disable 1\n", "oom_kill")).toBe(0);
});
