import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

async function sandbox(world: World, body: object = {}): Promise<{ id: string }> {
  const created = await world.call("POST", "/v1/sandboxes", {
    token: world.owner.token,
    body: { template: "debian-12", ...body },
  });
  if (created.status !== 201) throw new Error(`no sandbox: ${created.text}`);
  return { id: (created.json as { id: string }).id };
}

const unknown = { id: "sbx_doesnotexist" };
const path = "/workspace/a.txt";
const content = Buffer.from("hello").toString("base64");

async function withFile(world: World): Promise<{ id: string }> {
  const params = await sandbox(world);
  const written = await world.call("POST", `/v1/sandboxes/${params.id}/files`, {
    token: world.owner.token,
    body: { path, content },
  });
  if (written.status >= 300) throw new Error(`no file: ${written.text}`);
  return params;
}

async function withCommand(world: World): Promise<{ id: string; cmd: string }> {
  const params = await sandbox(world);
  const started = await world.call("POST", `/v1/sandboxes/${params.id}/commands`, {
    token: world.owner.token,
    body: { command: "exec /bin/cat" },
  });
  if (started.status !== 201) throw new Error(`no command: ${started.text}`);
  return { ...params, cmd: (started.json as { id: string }).id };
}

const interpreter = { template: "code-interpreter" };

async function withContext(world: World): Promise<{ id: string; ctx: string }> {
  const params = await sandbox(world, interpreter);
  const made = await world.call("POST", `/v1/sandboxes/${params.id}/code/contexts`, {
    token: world.owner.token,
    body: { language: "javascript" },
  });
  if (made.status !== 201) throw new Error(`no context: ${made.text}`);
  return { ...params, ctx: (made.json as { id: string }).id };
}

async function withPty(world: World): Promise<{ id: string; pty: string }> {
  const params = await sandbox(world);
  const started = await world.call("POST", `/v1/sandboxes/${params.id}/pty`, {
    token: world.owner.token,
    body: { command: "exec /bin/cat" },
  });
  if (started.status !== 201) throw new Error(`no terminal: ${started.text}`);
  return { ...params, pty: (started.json as { id: string }).id };
}

/** Address of a webhook. No server listens there, and no delivery reaches it. */
const hook = "http://127.0.0.1:9/hook";

/** Deletes the webhooks, because an account has at most ten and the cases run often. */
async function withoutWebhooks(world: World): Promise<void> {
  const { token } = world.owner;
  const listed = await world.call("GET", "/v1/sandboxes/webhooks", { token });
  for (const { id } of (listed.json as { items: { id: string }[] }).items)
    await world.call("DELETE", `/v1/sandboxes/webhooks/${id}`, { token });
}

async function webhook(world: World): Promise<{ id: string }> {
  await withoutWebhooks(world);
  const { token } = world.owner;
  const made = await world.call("POST", "/v1/sandboxes/webhooks", { token, body: { url: hook } });
  if (made.status !== 201) throw new Error(`no webhook: ${made.text}`);
  return { id: (made.json as { id: string }).id };
}

let volumes = 0;

async function volume(world: World): Promise<{ id: string }> {
  const body = { name: `volume-${++volumes}` };
  const made = await world.call("POST", "/v1/sandboxes/volumes", { token: world.owner.token, body });
  if (made.status !== 201) throw new Error(`no volume: ${made.text}`);
  return { id: (made.json as { id: string }).id };
}

/** Makes a ready template whose steps do nothing. */
async function template(world: World): Promise<{ id: string }> {
  const { token } = world.owner;
  const made = await world.call("POST", "/v1/templates", { token, body: { ...recipe, tags: ["v1"] } });
  if (made.status !== 201) throw new Error(`no template: ${made.text}`);
  await world.build();
  return { id: (made.json as { id: string }).id };
}

const recipe = { name: "mine", base_template: "debian-12", recipe: ["exec true"] };
const unknownTemplate = { id: "tmpl_doesnotexist" };

async function snapshot(world: World): Promise<{ id: string }> {
  const { id } = await sandbox(world);
  const { token } = world.owner;
  const kept = await world.call("POST", `/v1/sandboxes/${id}/snapshots`, { token, body: {} });
  if (kept.status !== 201) throw new Error(`no snapshot: ${kept.text}`);
  return { id: (kept.json as { id: string }).id };
}

const query = `path=${encodeURIComponent(path)}`;

export const sandboxCases: Cases = {
  createSandbox: { success: () => ({ body: { template: "debian-12", metadata: { team: "red" } } }) },
  listSandboxes: { success: async (world) => (await sandbox(world), { query: "status=running&limit=2" }) },
  getSandboxLimits: { success: () => ({}) },
  getSandbox: { success: async (world) => ({ params: await sandbox(world) }), unknown },
  updateSandbox: {
    success: async (world) => ({
      params: await sandbox(world),
      body: { allow_domains: ["api.example.com"] },
    }),
    unknown,
  },
  terminateSandbox: { success: async (world) => ({ params: await sandbox(world) }), unknown },
  keepSandboxAlive: {
    success: async (world) => ({ params: await sandbox(world), body: { timeout_seconds: 60 } }),
    unknown,
  },
  pauseSandbox: { success: async (world) => ({ params: await sandbox(world) }), unknown },
  resumeSandbox: {
    success: async (world) => {
      const params = await sandbox(world);
      const paused = await world.call("POST", `/v1/sandboxes/${params.id}/pause`, {
        token: world.owner.token,
      });
      if (paused.status !== 200) throw new Error(`not paused: ${paused.text}`);
      return { params };
    },
    unknown,
  },
  createSnapshot: { success: async (world) => ({ params: await sandbox(world), body: {} }), unknown },
  listSnapshots: { success: async (world) => (await snapshot(world), { query: "limit=1" }) },
  getSnapshot: {
    success: async (world) => ({ params: await snapshot(world) }),
    unknown: { id: "snap_doesnotexist" },
  },
  deleteSnapshot: {
    success: async (world) => ({ params: await snapshot(world) }),
    unknown: { id: "snap_doesnotexist" },
  },
  forkSandbox: {
    success: async (world) => ({ params: await sandbox(world), body: { count: 2, env: { A: "b" } } }),
    unknown,
  },
  getSandboxHost: {
    success: async (world) => ({ params: await sandbox(world), query: "port=3000" }),
    unknown,
  },
  getSandboxMetrics: { success: async (world) => ({ params: await sandbox(world) }), unknown },

  execCommand: {
    success: async (world) => ({ params: await sandbox(world), body: { args: ["/bin/true"] } }),
    unknown,
    keeps: ["args", "command"],
  },

  createVolume: {
    success: () => ({ body: { name: `volume-${++volumes}`, size_gb: 1 } }),
    keeps: ["name"],
  },
  listVolumes: { success: async (world) => (await volume(world), { query: "limit=1" }) },
  moveVolume: {
    success: async (world) => ({ params: await volume(world), body: { region: "us-1" } }),
    unknown: { id: "vol_doesnotexist" },
  },
  deleteVolume: {
    success: async (world) => ({ params: await volume(world) }),
    unknown: { id: "vol_doesnotexist" },
  },

  createSandboxWebhook: {
    success: async (world) => {
      await withoutWebhooks(world);
      return { body: { url: hook, event_types: ["sandbox.created"] } };
    },
    keeps: ["url"],
  },
  listSandboxWebhooks: { success: async (world) => (await webhook(world), {}) },
  enableSandboxWebhook: {
    success: async (world) => ({ params: await webhook(world) }),
    unknown: { id: "whk_doesnotexist" },
  },
  deleteSandboxWebhook: {
    success: async (world) => ({ params: await webhook(world) }),
    unknown: { id: "whk_doesnotexist" },
  },

  createTemplate: {
    success: () => ({ body: { ...recipe, start_command: "exec true" } }),
    keeps: ["name", "base_template"],
  },
  listTemplates: { success: async (world) => (await template(world), { query: "limit=1" }) },
  getTemplate: { success: async (world) => ({ params: await template(world) }), unknown: unknownTemplate },
  deleteTemplate: { success: async (world) => ({ params: await template(world) }), unknown: unknownTemplate },
  tagTemplate: {
    success: async (world) => ({ params: { ...(await template(world)), tag: "stable" } }),
    unknown: { ...unknownTemplate, tag: "v1" },
  },
  untagTemplate: {
    success: async (world) => ({ params: { ...(await template(world)), tag: "v1" } }),
    unknown: { ...unknownTemplate, tag: "v1" },
  },
  readTemplateLogs: {
    success: async (world) => ({ params: await template(world), query: "limit=10" }),
    unknown: unknownTemplate,
  },

  listSandboxEvents: {
    success: async (world) => (await sandbox(world), { query: "event_type=sandbox.created&limit=2" }),
  },

  runCode: {
    success: async (world) => ({
      params: await sandbox(world, interpreter),
      body: { code: "1 + 1", language: "python" },
    }),
    unknown,
    keeps: ["code"],
  },
  createCodeContext: {
    success: async (world) => ({
      params: await sandbox(world, interpreter),
      body: { language: "typescript", cwd: "/workspace" },
    }),
    unknown,
  },
  listCodeContexts: { success: async (world) => ({ params: await withContext(world) }), unknown },
  restartCodeContext: { success: async (world) => ({ params: await withContext(world) }), unknown },
  deleteCodeContext: { success: async (world) => ({ params: await withContext(world) }), unknown },
  startCommand: {
    success: async (world) => ({
      params: await sandbox(world),
      body: { command: "exec /bin/true", tag: "t" },
    }),
    unknown,
    keeps: ["command"],
  },
  listCommands: {
    success: async (world) => ({ params: { id: (await withCommand(world)).id }, query: "limit=1" }),
    unknown,
  },
  getCommand: { success: async (world) => ({ params: await withCommand(world) }), unknown },
  killCommand: { success: async (world) => ({ params: await withCommand(world) }), unknown },
  readCommandLogs: {
    success: async (world) => ({ params: await withCommand(world), query: "offset=1&limit=10" }),
    unknown,
  },
  writeCommandInput: {
    success: async (world) => ({ params: await withCommand(world), body: { data: content, eof: true } }),
    unknown,
  },

  startPty: {
    success: async (world) => ({
      params: await sandbox(world),
      body: { command: "exec /bin/cat", cols: 100, rows: 30 },
    }),
    unknown,
    keeps: ["command"],
  },
  listPtys: { success: async (world) => ({ params: { id: (await withPty(world)).id } }), unknown },
  getPty: { success: async (world) => ({ params: await withPty(world) }), unknown },
  killPty: { success: async (world) => ({ params: await withPty(world) }), unknown },

  writeFile: {
    success: async (world) => ({ params: await sandbox(world), body: { path, content } }),
    unknown,
  },
  readFile: { success: async (world) => ({ params: await withFile(world), query }), unknown },
  deleteFile: { success: async (world) => ({ params: await withFile(world), query }), unknown },
  statFile: { success: async (world) => ({ params: await withFile(world), query }), unknown },
  makeDirectory: {
    success: async (world) => ({ params: await sandbox(world), body: { path: "/workspace/made/here" } }),
    unknown,
  },
  moveFile: {
    success: async (world) => ({
      params: await withFile(world),
      body: { from: path, to: "/workspace/b.txt" },
    }),
    unknown,
  },
  watchFiles: {
    success: async (world) => {
      const params = await sandbox(world);
      // A watch and its response end with the sandbox; the watch has started by then.
      const end = () => world.call("DELETE", `/v1/sandboxes/${params.id}`, { token: world.owner.token });
      setTimeout(() => void end().catch(() => {}), 1500).unref();
      return { params, query: "path=/workspace&recursive=true" };
    },
    unknown,
  },
  presignDownload: { success: async (world) => ({ params: await sandbox(world), body: { path } }), unknown },
  presignUpload: { success: async (world) => ({ params: await sandbox(world), body: { path } }), unknown },
  writeFiles: {
    success: async (world) => ({ params: await sandbox(world), body: { files: [{ path, content }] } }),
    unknown,
  },
};
