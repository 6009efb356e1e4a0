/**
 * Whose turn it is: so many at once, one of each workspace (its layers and caches are one store), and among those who
 * wait the workspace that was served longest ago. Many builds of one thus hold up nobody else's.
 */
interface Waiting {
  workspace: string;
  begin: () => void;
}

export class BuildQueue {
  readonly #limit: number;
  readonly #running = new Set<string>();
  readonly #waiting: Waiting[] = [];
  /** Workspace → when it was last served, in turns. */
  readonly #served = new Map<string, number>();
  #turn = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** `onWait` hears that others are first. Rejects with the signal's reason. */
  async run<T>(
    workspace: string,
    work: () => Promise<T>,
    { signal, onWait }: { signal: AbortSignal; onWait: () => void },
  ): Promise<T> {
    signal.throwIfAborted();
    const turn = Promise.withResolvers<void>();
    const waiting: Waiting = { workspace, begin: turn.resolve };
    const leave = () => {
      const index = this.#waiting.indexOf(waiting);
      if (index < 0) return;
      this.#waiting.splice(index, 1);
      turn.reject(signal.reason);
    };
    this.#waiting.push(waiting);
    this.#next();
    if (this.#waiting.includes(waiting)) onWait();
    signal.addEventListener("abort", leave, { once: true });
    try {
      await turn.promise;
    } finally {
      signal.removeEventListener("abort", leave);
    }
    try {
      return await work();
    } finally {
      this.#running.delete(workspace);
      this.#next();
    }
  }

  #next(): void {
    while (this.#running.size < this.#limit) {
      const free = this.#waiting.filter(({ workspace }) => !this.#running.has(workspace));
      const [next] = free.toSorted((a, b) => this.#lastServed(a) - this.#lastServed(b));
      if (!next) return;
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#running.add(next.workspace);
      this.#served.set(next.workspace, (this.#turn += 1));
      next.begin();
    }
  }

  #lastServed({ workspace }: Waiting): number {
    return this.#served.get(workspace) ?? 0;
  }
}
