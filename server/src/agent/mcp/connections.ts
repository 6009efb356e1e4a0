/**
 * Pool of connections to MCP servers. The pool keeps connections between calls, because a handshake takes several
 * requests. Each toolset and end user has its own connection, since a session may contain private data. Idle
 * connections are closed. After a failure, a connection gets no new calls, but its calls in flight continue.
 */
import { SdkHttpError } from "@modelcontextprotocol/client";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { type Fetch, modelFetch, ownedFetch } from "../models/fetch.ts";
import type { McpConnection } from "./connection.ts";
import type { Elicitation } from "./elicitation.ts";
import { type McpAddress, openMcp } from "./open.ts";
import { explainFailure } from "./explain-failure.ts";

const opensWithinMs = 15_000;
const keptForMs = 60_000;
const keptMax = 500;

export interface McpPeer {
  /** Key of the toolset and the end user. */
  key: string;
  /** Hash of all settings that the connection depends on. */
  version: string;
  address: McpAddress;
  /** Workspace of the toolset. DNS lookups count against the workspace's limit. */
  owner: string;
  onToolsChanged: () => void;
  elicitation?: Elicitation | undefined;
}

interface PooledConnection {
  version: string;
  opening: Promise<McpConnection>;
  users: number;
  idle: NodeJS.Timeout | undefined;
}

export class McpConnections {
  readonly #fetch: Fetch;
  readonly #kept = new Map<string, PooledConnection>();
  readonly #closing = new Set<Promise<void>>();

  constructor(fetch: Fetch) {
    this.#fetch = fetch;
  }

  /** Fetch of a separate connection that one call uses and then closes. */
  get fetch(): Fetch {
    return this.#fetch;
  }

  /**
   * Runs `work` with a connection of the pool, and returns its result. Throws the reason why no connection opened, or
   * the error of `work`. `isHarmless`: `work` may be repeated.
   */
  async use<T>(
    peer: McpPeer,
    work: (connection: McpConnection) => Promise<T>,
    { isHarmless = false } = {},
  ): Promise<T> {
    const isNew = !this.#kept.has(peer.key);
    try {
      return await this.#once(peer, work);
    } catch (error) {
      // A restarted server does not know the old session and did not execute the request, so the request is repeated
      // once.
      const isUnknown = error instanceof SdkHttpError && [400, 404].includes(error.status);
      if (isNew || !(isUnknown || (isHarmless && explainFailure(error).kind === "unreachable"))) throw error;
      return await this.#once(peer, work);
    }
  }

  /** Closes all connections. A connection in use closes after its last call. */
  async closeAll(): Promise<void> {
    for (const [key, kept] of this.#kept) this.#drop(key, kept);
    await Promise.all(this.#closing);
  }

  async #once<T>(peer: McpPeer, work: (connection: McpConnection) => Promise<T>): Promise<T> {
    const kept = this.#hold(peer);
    kept.users += 1;
    clearTimeout(kept.idle);
    try {
      const connection = await kept.opening;
      if (!connection.isOpen) throw new Error("the server closed the connection");
      const done = await work(connection);
      if (connection.isWorn) this.#drop(peer.key, kept);
      return done;
    } catch (error) {
      if (explainFailure(error).kind !== "refused") this.#drop(peer.key, kept);
      throw error;
    } finally {
      kept.users -= 1;
      this.#afterUse(peer.key, kept);
    }
  }

  #hold({ key, version, address, owner, onToolsChanged, elicitation }: McpPeer): PooledConnection {
    const known = this.#kept.get(key);
    if (known?.version === version) return known;
    if (known) this.#drop(key, known);
    const fetch = ownedFetch(this.#fetch, owner);
    const opening = openMcp(address, { fetch, timeoutMs: opensWithinMs, onToolsChanged, elicitation });
    const made = { version, opening, users: 0, idle: undefined };
    this.#kept.set(key, made);
    return made;
  }

  #afterUse(key: string, kept: PooledConnection): void {
    if (kept.users > 0) return;
    if (this.#kept.get(key) !== kept) return this.#close(kept);
    if (this.#kept.size > keptMax) return this.#drop(key, kept);
    kept.idle = setTimeout(() => this.#drop(key, kept), keptForMs);
    kept.idle.unref();
  }

  /** Removes the connection from the pool. The next use opens a new connection. */
  #drop(key: string, kept: PooledConnection): void {
    if (this.#kept.get(key) !== kept) return;
    this.#kept.delete(key);
    clearTimeout(kept.idle);
    if (kept.users === 0) this.#close(kept);
  }

  #close({ opening }: PooledConnection): void {
    const closing = opening
      .then((connection) => connection.close())
      .catch(() => {})
      .finally(() => this.#closing.delete(closing));
    this.#closing.add(closing);
  }
}

const ofDatabases = new WeakMap<App["db"], McpConnections>();

/** Returns the pool of this server. */
export function mcpConnections({ db, config }: Pick<App, "db" | "config">): McpConnections {
  const known = ofDatabases.get(db);
  if (known) return known;
  const made = new McpConnections(modelFetch(parseOpenedHosts(config.allowPrivateHosts)));
  ofDatabases.set(db, made);
  return made;
}
