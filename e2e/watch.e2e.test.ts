import { afterEach, expect, test } from "vitest";
import { type Frame, frames } from "./support/api.ts";
import { createSandbox, exec, server, sharedSandbox, writeFile } from "./support/fixtures.ts";

const box = sharedSandbox();

afterEach(() => server.start());

function watch(id: string, path: string, signal: AbortSignal): AsyncGenerator<Frame> {
  const query = `path=${encodeURIComponent(path)}&recursive=true`;
  const call = { token: server.token, signal };
  return frames(server.baseUrl, `/v1/sandboxes/${id}/files/watch?${query}`, call, "GET");
}

/** Starts a watch, runs `work` after its first event, and collects events up to a given frame. */
async function collectEvents(
  id: string,
  path: string,
  work: () => Promise<unknown>,
  isLast: (frame: Frame) => boolean,
): Promise<Frame[]> {
  const gone = new AbortController();
  const all: Frame[] = [];
  let working: Promise<unknown> | undefined;
  for await (const frame of watch(id, path, AbortSignal.any([gone.signal, AbortSignal.timeout(50_000)]))) {
    if (frame.kind === "watching") working = work();
    all.push(frame);
    if (isLast(frame)) break;
  }
  gone.abort();
  // The event may arrive before the response of the call that caused it.
  await working;
  return all;
}

const lines = (frames: Frame[]) =>
  frames.map(({ kind, path, from }) => [kind, from, path].filter((word) => word !== undefined).join(" "));

test("reports changes by programs, shells and file calls, in a directory tree that grows during the watch", async () => {
  await exec(box.id, "mkdir -p app/src && echo 1 > app/src/a");
  const all = await collectEvents(
    box.id,
    "/workspace/app",
    async () => {
      const step = "sleep 0.1";
      await exec(
        box.id,
        `cd app; echo 2 >> src/a; ${step}; mkdir -p lib/deep; echo x > lib/deep/x; ${step}; mv lib vendor; ${step}; echo y > vendor/deep/y; ${step}; rm -r vendor`,
      );
      await writeFile(box.id, "/workspace/app/last", "done");
    },
    ({ path }) => path === "/workspace/app/last",
  );
  expect(all.filter(({ path }) => path?.includes(".kontor"))).toEqual([]);
  const said = lines(all);
  for (const line of [
    "modified /workspace/app/src/a",
    "created /workspace/app/lib",
    "created /workspace/app/lib/deep",
    "created /workspace/app/lib/deep/x",
    "moved /workspace/app/lib /workspace/app/vendor",
    "created /workspace/app/vendor/deep/y",
    "deleted /workspace/app/vendor/deep",
    "deleted /workspace/app/vendor",
    "created /workspace/app/last",
  ]) {
    expect(said).toContain(line);
  }
});

test("a watch of a busy directory tree does not prevent pauses, and ends with the pause as the reason", async () => {
  const { id } = await createSandbox({ timeout_seconds: 600 });
  await exec(id, "for i in $(seq 300); do mkdir -p tree/$i; done");
  await exec(
    id,
    "setsid bash -c 'while :; do for i in $(seq 300); do echo $RANDOM > tree/$i/f; done; done' >/dev/null 2>&1 &",
  );
  for (let round = 0; round < 3; round += 1) {
    const all = await collectEvents(
      id,
      "/workspace/tree",
      async () => {
        const paused = await server.api("POST", `/v1/sandboxes/${id}/pause`);
        expect(paused.status, JSON.stringify(paused.body)).toBe(200);
      },
      () => false,
    );
    expect(all.at(-1)).toMatchObject({ kind: "ended", code: "sandbox_paused" });
    expect((await server.api("POST", `/v1/sandboxes/${id}/resume`)).status).toBe(200);
  }
});

test("sixteen new watches open after kill -9 of the server, although sixteen earlier watches were open", async () => {
  const { id } = await createSandbox();
  const begun = Promise.withResolvers<void>();
  let count = 0;
  const watches = Array.from({ length: 16 }, async () => {
    for await (const { kind } of watch(id, "/workspace", AbortSignal.timeout(50_000)))
      if (kind === "watching" && (count += 1) === 16) begun.resolve();
  });
  const ended = Promise.allSettled(watches);
  await begun.promise;
  await server.kill9();
  expect((await ended).map(({ status }) => status)).toEqual(Array.from({ length: 16 }, () => "rejected"));
  await server.start();
  // Each watch has its own file name, so that it receives no event of another watch.
  const again = Array.from({ length: 16 }, (_, n) =>
    collectEvents(
      id,
      "/workspace",
      () => exec(id, `touch now-${n}`),
      ({ path }) => path === `/workspace/now-${n}`,
    ),
  );
  for (const [n, all] of (await Promise.all(again)).entries())
    expect(lines(all)).toContain(`created /workspace/now-${n}`);
});
