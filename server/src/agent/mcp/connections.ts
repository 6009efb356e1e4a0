/**
 * Connections to MCP servers, kept between calls, because a handshake is several requests: one for each toolset and end
 * user, since a server may keep things in a session that are nobody else's. What is not used for a while is closed; what
 * failed is not used again, and whoever uses it still goes on.
 */
import { SdkHttpError } from "@modelcontextprotocol/client";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { type Fetch, modelFetch, ownedFetch } from "../models/fetch.ts";
import type { McpConnection } from "./connection.ts";
import type { Elicitation } from "./elicitation.ts";
import { type McpAddress, openMcp } from "./open.ts";
import { whyNot } from "./why.ts";

const opensWithinMs = 15_000;
const keptForMs = 60_000;
const keptMax = 500;

export interface McpPeer {
  /** The toolset and the end user. */
  key: string;
  /** Changes with all that a connection is made of. */
  version: string;
  address: McpAddress;
  /** Workspace of the toolset, for which look-ups of names count. */
  owner: string;
  onToolsChanged: () => void;
  elicitation?: Elicitation | undefined;
}

interface Kept {
  version: string;
  opening: Promise<McpConnection>;
  users: number;
  idle: NodeJS.Timeout | undefined;
}

export class McpConnections {
  readonly #fetch: Fetch;
  readonly #kept = new Map<string, Kept>();
  readonly #closing = new Set<Promise<void>>();

  constructor(fetch: Fetch) {
    this.#fetch = fetch;
  }

  /** Of an own connection that nobody else uses and that is closed after it. */
  get fetch(): Fetch {
    return this.#fetch;
  }

  /** Throws why no connection came to be, or what `work` throws. `isHarmless`: work that may be done twice. */
  async use<T>(
    peer: McpPeer,
    work: (connection: McpConnection) => Promise<T>,
    { isHarmless = false } = {},
  ): Promise<T> {
    const isNew = !this.#kept.has(peer.key);
    try {
      return await this.#once(peer, work);
    } catch (error) {
      // A server that was started anew knows no session of before, and did nothing: it is asked once more.
      const isUnknown = error instanceof SdkHttpError && [400, 404].includes(error.status);
      if (isNew || !(isUnknown || (isHarmless && whyNot(error).kind === "unreachable"))) throw error;
      return await this.#once(peer, work);
    }
  }

  /** All of them; those that are in use when that is over. */
  async closeAll(): Promise<void> {
    for (const [key, kept] of this.#kept) this.#letGo(key, kept);
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
      if (connection.isWorn) this.#letGo(peer.key, kept);
      return done;
    } catch (error) {
      if (whyNot(error).kind !== "refused") this.#letGo(peer.key, kept);
      throw error;
    } finally {
      kept.users -= 1;
      this.#afterUse(peer.key, kept);
    }
  }

  #hold({ key, version, address, owner, onToolsChanged, elicitation }: McpPeer): Kept {
    const known = this.#kept.get(key);
    if (known?.version === version) return known;
    if (known) this.#letGo(key, known);
    const fetch = ownedFetch(this.#fetch, owner);
    const opening = openMcp(address, { fetch, timeoutMs: opensWithinMs, onToolsChanged, elicitation });
    const made = { version, opening, users: 0, idle: undefined };
    this.#kept.set(key, made);
    return made;
  }

  #afterUse(key: string, kept: Kept): void {
    if (kept.users > 0) return;
    if (this.#kept.get(key) !== kept) return this.#close(kept);
    if (this.#kept.size > keptMax) return this.#letGo(key, kept);
    kept.idle = setTimeout(() => this.#letGo(key, kept), keptForMs);
    kept.idle.unref();
  }

  /** The next use opens another. */
  #letGo(key: string, kept: Kept): void {
    if (this.#kept.get(key) !== kept) return;
    this.#kept.delete(key);
    clearTimeout(kept.idle);
    if (kept.users === 0) this.#close(kept);
  }

  #close({ opening }: Kept): void {
    const closing = opening
      .then((connection) => connection.close())
      .catch(() => {})
      .finally(() => this.#closing.delete(closing));
    this.#closing.add(closing);
  }
}

const ofDatabases = new WeakMap<App["db"], McpConnections>();

/** Those of this server. */
export function mcpConnections({ db, config }: Pick<App, "db" | "config">): McpConnections {
  const known = ofDatabases.get(db);
  if (known) return known;
  const made = new McpConnections(modelFetch(parseOpenedHosts(config.allowPrivateHosts)));
  ofDatabases.set(db, made);
  return made;
}
