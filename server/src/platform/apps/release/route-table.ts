/**
 * Maps hosts to apps in memory, so that a request needs no query. Rows are read at the start, and again for an
 * environment after each commit that changes its app. The state of the app's process is not in the rows; this server
 * keeps that state itself.
 */
import type { Db } from "#schema.ts";
import { listServed, type ServedRow } from "../store.ts";

export interface AppRoute {
  environmentId: string;
  projectId: string;
  workspaceId: string;
  /** `down`: the app should run and does not, or was never deployed. */
  state: "live" | "asleep" | "down";
  /** Id of the app's machine; null if the app does not run. */
  machine: string | null;
  /** Port of the app; null if the environment was never deployed. */
  port: number | null;
  /** True if nothing is served and the last deployment failed. */
  hasFailed: boolean;
  /** Counter of the visitors' bytes, updated by the ingress. Null if the app does not run. */
  traffic: Traffic | null;
}

/** HTTP bytes between visitors and an app. `rxBytes` are those that the app receives. */
export interface Traffic {
  rxBytes: number;
  txBytes: number;
}

/** Returns the state of an instance's process and machine. */
export type ReadInstance = (instanceId: string) => {
  machine: string | null;
  isUp: boolean;
  traffic: Traffic | null;
};

const unseen = { machine: null, isUp: false, traffic: null };

export class AppRoutes {
  readonly #db: Db;
  readonly #domain: string;
  readonly #seen: ReadInstance;
  readonly #byHost = new Map<string, AppRoute>();
  readonly #rows = new Map<string, ServedRow>();

  /** `domain` is the parent domain of all apps' hosts, without a port. Every host has one label more. */
  constructor(deps: { db: Db; domain: string; seen: ReadInstance }) {
    this.#db = deps.db;
    this.#domain = deps.domain;
    this.#seen = deps.seen;
  }

  /** Returns the app of a host, which must be in lower case and without a port. */
  find(host: string): AppRoute | undefined {
    return this.#byHost.get(host);
  }

  of(environmentId: string): AppRoute | undefined {
    const row = this.#rows.get(environmentId);
    return row && this.#byHost.get(this.hostOf(row.host_label));
  }

  hostOf(label: string): string {
    return `${label}.${this.#domain}`;
  }

  async load(): Promise<void> {
    for (const row of await listServed(this.#db)) this.#set(row);
  }

  /** Reads an environment again after it was created, renamed, deleted or switched. */
  async refresh(environmentId: string): Promise<void> {
    const [row] = await listServed(this.#db, { environmentId });
    if (row) this.#set(row);
    else this.#drop(environmentId);
  }

  /** Reads all environments of a project again, after a rename or after one was created. */
  async refreshProject(projectId: string): Promise<void> {
    for (const row of await listServed(this.#db, { projectId })) this.#set(row);
  }

  /** Updates the state of the environment's process, without a query. */
  seen(environmentId: string): void {
    const row = this.#rows.get(environmentId);
    if (row) this.#set(row);
  }

  #set(row: ServedRow): void {
    this.#drop(row.environment_id);
    const { machine, isUp, traffic } = row.instance_id === null ? unseen : this.#seen(row.instance_id);
    this.#rows.set(row.environment_id, row);
    this.#byHost.set(this.hostOf(row.host_label), {
      environmentId: row.environment_id,
      projectId: row.project_id,
      workspaceId: row.workspace_id,
      state: row.state === "asleep" ? "asleep" : isUp ? "live" : "down",
      machine,
      port: row.port,
      hasFailed: row.port === null && row.has_failed,
      traffic,
    });
  }

  #drop(environmentId: string): void {
    const row = this.#rows.get(environmentId);
    this.#rows.delete(environmentId);
    const host = row && this.hostOf(row.host_label);
    if (host !== undefined && this.#byHost.get(host)?.environmentId === environmentId)
      this.#byHost.delete(host);
  }
}
