/**
 * Long-lived responses of this process: event streams, WebSockets and git exchanges, each with the credential that
 * opened it. A check every two seconds looks up all their credentials together. A stream ends when its credential is
 * revoked or expires, or when its actor loses a scope or a workspace.
 */
import type { Logger } from "pino";
import type { Actor, Credential } from "#accounts/actor.ts";
import type { Config } from "#config.ts";
import { tooManyStreams } from "../errors.ts";
import { planOf } from "../limits/rate-rules.ts";

/** Actors in the order of the credentials; undefined for an invalid credential. */
export type FindActors = (credentials: readonly Credential[]) => Promise<readonly (Actor | undefined)[]>;

export interface OpenStream {
  /** The actor's rights at the time the stream was opened. */
  actor: Actor;
  credential: Credential;
  /** True for a stream that accepts input: it also ends with a change of role or a suspension. */
  isWrite?: boolean;
  end(): void;
}

/** Limits of open streams by plan. */
export type StreamNumbers = Pick<Config, "streamsStarter" | "streamsPro" | "streamsTeam">;

const checkEveryMs = 2_000;

export class OpenStreams {
  readonly #streams = new Set<OpenStream>();
  /** Reserved slots, by the request that will open the stream. */
  readonly #reserved = new Map<object, Actor>();
  readonly #findActors: FindActors;
  readonly #log: Pick<Logger, "warn">;
  readonly #numbers: StreamNumbers | null;
  #timer: NodeJS.Timeout | undefined;
  #isChecking = false;

  /** `numbers` is null if streams are not limited. */
  constructor(findActors: FindActors, log: Pick<Logger, "warn">, numbers: StreamNumbers | null = null) {
    this.#findActors = findActors;
    this.#log = log;
    this.#numbers = numbers;
  }

  /**
   * Reserves a slot before a stream's work starts, so that the stream is not refused afterwards. Throws if the
   * credential or its home workspace has no free slot. Returns a function that releases the slot unless the stream has
   * opened.
   */
  reserve(request: object, actor: Actor): () => void {
    this.#requireRoom(actor);
    this.#reserved.set(request, actor);
    return () => void this.#reserved.delete(request);
  }

  /** Acquires the request's reserved slot, or a free slot. Throws if none is free. */
  claim(request: object, actor: Actor): void {
    if (!this.#reserved.delete(request)) this.#requireRoom(actor);
  }

  #requireRoom(actor: Actor): void {
    if (this.#numbers === null) return;
    const { streamsStarter, streamsPro, streamsTeam } = this.#numbers;
    const most = { starter: streamsStarter, pro: streamsPro, team: streamsTeam }[planOf(actor)];
    const mostOfOne = Math.floor(most / 2);
    const open = [...[...this.#streams].map((stream) => stream.actor), ...this.#reserved.values()];
    const ofOne = open.filter((other) => holderOf(other) === holderOf(actor)).length;
    if (ofOne >= mostOfOne) throw tooManyStreams(mostOfOne);
    const [home] = actor.workspaces;
    const ofHome = open.filter(({ workspaces }) => workspaces[0]?.id === home?.id).length;
    if (ofHome >= most) throw tooManyStreams(most);
  }

  /** Returns a function that removes the stream; call it when the stream has ended. */
  add(stream: OpenStream): () => void {
    this.#streams.add(stream);
    this.#timer ??= setInterval(() => void this.check(), checkEveryMs).unref();
    return () => {
      this.#streams.delete(stream);
      if (this.#streams.size === 0) this.close();
    };
  }

  /** Lists the open streams. */
  all(): Iterable<OpenStream> {
    return this.#streams;
  }

  /** Ends no stream while the database is unavailable; the next check decides. */
  async check(): Promise<void> {
    if (this.#isChecking) return;
    this.#isChecking = true;
    try {
      const checked = [...this.#streams];
      const bySecret = new Map(checked.map(({ credential }) => [keyOf(credential), credential]));
      const found = await this.#findActors([...bySecret.values()]);
      const actors = new Map([...bySecret.keys()].map((key, place) => [key, found[place]]));
      for (const stream of checked) {
        if (!this.#streams.has(stream) || isStillAllowed(stream, actors.get(keyOf(stream.credential))))
          continue;
        this.#streams.delete(stream);
        stream.end();
      }
    } catch (error) {
      this.#log.warn({ error }, "credentials of open streams could not be checked");
    } finally {
      this.#isChecking = false;
    }
  }

  close(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

const holderOf = ({ tokenId, userId }: Actor): string => tokenId ?? userId;

const keyOf = ({ kind, secret }: Credential): string => `${kind} ${secret}`;

/** True while the actor has the rights with which it opened the stream. Additional rights do not end a stream. */
function isStillAllowed({ actor, isWrite = false }: OpenStream, now: Actor | undefined): boolean {
  if (now === undefined) return false;
  const hasScopes =
    now.scopes === null || (actor.scopes?.every((scope) => now.scopes!.includes(scope)) ?? false);
  return (
    hasScopes &&
    actor.workspaces.every((before) => {
      const workspace = now.workspaces.find(({ id }) => id === before.id);
      if (workspace === undefined) return false;
      return !isWrite || (workspace.role === before.role && !workspace.suspended);
    })
  );
}
