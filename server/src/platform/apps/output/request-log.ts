/**
 * Writes the requests of a static site to its log. The site's server writes no log by itself, and an empty log looks
 * like a broken one. Query strings are left out, because they may contain tokens. Lines above the rate are counted and
 * dropped.
 */
import { isSite } from "#builds/detection/recipe.ts";
import type { AppsContext } from "../apps-context.ts";

export interface Request {
  method: string;
  /** Path with or without a query. */
  path: string;
  status: number;
  ms: number;
}

/** Lines of an environment in each interval. */
const linesAtOnce = 50;
const intervalMs = 1_000;
const pathMaxChars = 500;

interface Pending {
  lines: { at: number; text: string }[];
  dropped: number;
}

export class RequestLog {
  readonly #apps: AppsContext;
  readonly #pending = new Map<string, Pending>();
  #timer: NodeJS.Timeout | undefined;

  constructor(apps: AppsContext) {
    this.#apps = apps;
  }

  /** Records a request. For an app that is no static site, this costs one map look-up. */
  observed(environmentId: string, { method, path, status, ms }: Request): void {
    const running = this.#apps.serving(environmentId);
    if (!running || !isSite(running.row.run.argv)) return;
    let pending = this.#pending.get(environmentId);
    if (!pending) this.#pending.set(environmentId, (pending = { lines: [], dropped: 0 }));
    if (pending.lines.length >= linesAtOnce) {
      pending.dropped += 1;
      return;
    }
    const shown = path
      .split("?", 1)[0]!
      .replaceAll(/[^\x21-\x7e]/g, "?")
      .slice(0, pathMaxChars);
    const text = `${method} ${shown} ${status} ${Math.round(ms)} ms`;
    pending.lines.push({ at: this.#apps.app.clock.now().getTime(), text });
    this.#timer ??= setTimeout(() => this.flush(), intervalMs).unref();
  }

  /** Writes the recorded requests to the logs. */
  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const [environmentId, { lines, dropped }] of this.#pending) {
      const deployment = this.#apps.serving(environmentId)?.row.deployment_id;
      if (deployment === undefined) continue;
      const all = lines.map((line) => ({ ...line, stream: "stdout" as const, deployment }));
      if (dropped > 0) {
        const text = `${dropped} more requests in this second are not listed.`;
        all.push({ at: this.#apps.app.clock.now().getTime(), text, stream: "stdout", deployment });
      }
      this.#apps.inBackground("requests of a site were not logged", () =>
        this.#apps.ring(environmentId).append(all),
      );
    }
    this.#pending.clear();
  }
}
