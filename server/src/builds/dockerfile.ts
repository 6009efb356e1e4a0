/**
 * Runs queued builds of a Dockerfile. The enclosed builder of apps makes the image, with the same limits, isolation and
 * caches. There is no build context, so no instruction can copy files from a context. Log and progress are written to
 * the build's row.
 */
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import type { App } from "#app.ts";
import type { Guest } from "#machines/host/guest.ts";
import { BuildFailed as ImageBuildFailed, buildImage, type MadeImage, runOf } from "./app-images.ts";
import { BuildFailed, BuildDropped, sentence } from "./failures.ts";
import type { BuildLog } from "./log.ts";
import { type BuildRow, findBuild, saveProgress } from "./store.ts";
import type { ProcessDefaults } from "./tables.ts";

type Needs = Pick<App, "db" | "machines" | "config" | "clock" | "log">;

/** Milliseconds between checks of whether the build was dropped. */
const dropCheckMs = 500;
/** Characters of a step that its progress shows. */
const stepChars = 200;
/** Characters of the last output that the reason of a failure contains. */
const lastChars = 2000;
const inspectMs = 30_000;
/** Time limit of the guest's own work in the checks of an image, added to the limit of the image's programs. */
const answerMs = 30_000;

/** Builds the image. Rejects with `BuildFailed`, with `BuildDropped`, or with the signal's reason. */
export async function buildDockerfile(
  app: Needs,
  build: BuildRow,
  dockerfile: string,
  { log, signal }: { log: BuildLog; signal: AbortSignal },
): Promise<{ sizeBytes: number; defaults: ProcessDefaults }> {
  const dropped = new AbortController();
  const timer = setInterval(
    () =>
      findBuild(app.db, build.id).then(
        (row) => row ?? dropped.abort(new BuildDropped()),
        () => {},
      ),
    dropCheckMs,
  );
  let saved: Promise<void> = Promise.resolve();
  const context = join(app.config.dataDir, "work", "templates", build.id);
  try {
    await rm(context, { recursive: true, force: true });
    await mkdir(context, { recursive: true, mode: 0o700 });
    const { sizeBytes, config } = await buildImage(
      app,
      {
        id: build.id,
        workspaceId: build.workspace_id ?? "",
        context,
        rootDirectory: ".",
        recipe: dockerfile,
        secrets: {},
        // The limit of template builds, `buildMemoryMb`, is below this plan's memory.
        plan: "team",
      },
      {
        log: (text) => writeLog(log, text),
        progress: ({ fraction, message }) => {
          // Saves run in order. After a failed save, the next one follows.
          saved = saved
            .then(() => saveProgress(app.db, build.id, { fraction, step: message.slice(0, stepChars) }))
            .catch(() => {});
        },
        signal: AbortSignal.any([signal, dropped.signal]),
      },
      // The build's row names the image, so no sweep removes it.
      async (_tx, image: MadeImage) => image,
    );
    return { sizeBytes, defaults: defaultsOf(runOf(config)) };
  } catch (error) {
    if (!(error instanceof ImageBuildFailed)) throw error;
    const last = error.last.slice(-lastChars);
    throw new BuildFailed(last === "" ? sentence(error) : `${sentence(error)} Last output:\n${last}`);
  } finally {
    clearInterval(timer);
    await saved;
    await rm(context, { recursive: true, force: true });
  }
}

/**
 * Returns the defaults of the image's processes. The configuration may come from a registry, so its values are checked.
 * "/" is the builder's own default.
 */
function defaultsOf({ user, cwd }: { user: string | null; cwd: string }): ProcessDefaults {
  if (user !== null && !/^[\w.-]{1,32}(?::[\w.-]{1,32})?$/.test(user)) {
    throw new BuildFailed(
      `USER ${JSON.stringify(user.slice(0, 80))} is not supported: use a name or a number, and a group after a colon.`,
    );
  }
  const isUsable = /^\/[^\0]{1,4094}$/.test(cwd);
  return { user, cwd: isUsable ? cwd : null };
}

/**
 * Writes output to the log. The log's pieces carry the number of the instruction in its stage, from the builder's lines
 * "[1/2] STEP 2/7: …".
 */
async function writeLog(log: BuildLog, text: string): Promise<void> {
  const step = /^(?:\[\d{1,3}\/\d{1,3}\] )?STEP (\d{1,4})\//m.exec(text)?.[1];
  if (step !== undefined) await log.begin(Number(step), "");
  await log.write(Buffer.from(text));
}

/**
 * Checks that the image's user exists, and logs a warning for an image without a shell. The image's programs run as
 * root beside PID 1, so the guest may be hostile and never respond. Neither the queue nor a shutdown waits for such a
 * guest.
 */
export async function inspectImage(
  guest: Guest,
  defaults: ProcessDefaults,
  log: BuildLog,
  signal: AbortSignal,
  limitMs = inspectMs + answerMs,
): Promise<void> {
  const over = Promise.withResolvers<never>();
  const reason = "The machine of the image does not answer. Check /bin/sh of the image.";
  const timer = setTimeout(() => over.reject(new BuildFailed(reason)), limitMs);
  const stop = () => over.reject(signal.reason as Error);
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) stop();
  try {
    await Promise.race([inspect(guest, defaults, log), over.promise]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}

async function inspect(guest: Guest, { user }: ProcessDefaults, log: BuildLog): Promise<void> {
  const hasShell = await exits(guest, {});
  if (!hasShell) {
    await log.write(
      Buffer.from(
        "Warning: the image has no working /bin/sh. Commands, terminals and start_command need one; exec with `args` works without.\n",
      ),
    );
  }
  if (!hasShell || user === null || (await exits(guest, { user }))) return;
  throw new BuildFailed(
    `USER ${user}: the image has no such user. Create it in a RUN step before USER, or use a number.`,
  );
}

async function exits(guest: Guest, options: { user?: string }): Promise<boolean> {
  try {
    const child = await guest.spawn({
      argv: ["/bin/sh", "-c", ":"],
      cwd: "/",
      timeoutMs: inspectMs,
      onDisconnect: "kill",
      ...options,
    });
    try {
      child.endStdin();
      for await (const _ of child.output);
      return (await child.exit).code === 0;
    } finally {
      child.close();
    }
  } catch (error) {
    if (error instanceof RuntimeError && error.kind === "exec_failed") return false;
    throw error;
  }
}
