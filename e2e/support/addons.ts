/** Creates add-ons and backups of a server, and waits for them. */
import { expect } from "vitest";
import { eventually } from "./answers.ts";
import type { Server } from "./server.ts";

export interface Addon {
  id: string;
  project_id: string;
  status: string;
  error: string | null;
  host: string;
  port: number;
  connection_url: string;
  public_connection_url: string | null;
}

export interface Backup {
  id: string;
  kind: string;
  status: string;
  error: string | null;
  size_bytes: number;
  sha256: string;
}

export interface Restore {
  id: string;
  status: string;
  error: string | null;
  safety_backup_id: string | null;
}

const inProject = (projectId: string) => `/api/v1/projects/${projectId}/addons`;
export const pathOf = ({ project_id, id }: Pick<Addon, "project_id" | "id">) =>
  `${inProject(project_id)}/${id}`;

async function must<T>(server: Server, method: string, path: string, body?: object): Promise<T> {
  const reply = await server.api(method, path, body === undefined ? {} : { body });
  expect(reply.status, `${method} ${path}: ${JSON.stringify(reply.body)}`).toBeLessThan(300);
  return reply.body as T;
}

/** Creates an add-on. Returns it once it accepts connections. */
export async function createAddon(
  server: Server,
  projectId: string,
  body: Record<string, unknown>,
): Promise<Addon> {
  const { id } = await must<{ id: string }>(server, "POST", inProject(projectId), body);
  return running(server, { project_id: projectId, id });
}

export function listAddons(server: Server, projectId: string): Promise<Addon[]> {
  return must<Addon[]>(server, "GET", inProject(projectId));
}

export function running(server: Server, addon: Pick<Addon, "project_id" | "id">): Promise<Addon> {
  return eventually(
    () => must<Addon>(server, "GET", pathOf(addon)),
    ({ status }) => status === "running",
    90_000,
  );
}

export function listBackups(server: Server, addon: Addon): Promise<Backup[]> {
  return must<Backup[]>(server, "GET", `${pathOf(addon)}/backups`);
}

/** Starts a backup without waiting for its end. */
export async function beginBackup(server: Server, addon: Addon): Promise<string> {
  return (await must<{ id: string }>(server, "POST", `${pathOf(addon)}/backups`)).id;
}

/** Waits until a backup succeeds or fails, and returns it. */
export async function endOfBackup(server: Server, addon: Addon, id: string): Promise<Backup> {
  const find = async () => (await listBackups(server, addon)).find((one) => one.id === id);
  const found = await eventually(find, (one) => ["completed", "failed"].includes(one?.status ?? ""), 120_000);
  return found!;
}

export async function backedUp(server: Server, addon: Addon): Promise<Backup> {
  const backup = await endOfBackup(server, addon, await beginBackup(server, addon));
  expect(backup).toMatchObject({ status: "completed", error: null });
  return backup;
}

export async function beginRestore(server: Server, addon: Addon, backup: Pick<Backup, "id">): Promise<void> {
  await must(server, "POST", `${pathOf(addon)}/backups/${backup.id}/restore`, {});
}

/** Waits until the add-on's newest restore ends, and returns the restore. */
export async function endOfRestore(server: Server, addon: Addon): Promise<Restore> {
  const list = () => must<Restore[]>(server, "GET", `${pathOf(addon)}/restores`);
  const [newest] = await eventually(list, ([one]) => one !== undefined && one.status !== "running", 180_000);
  return newest!;
}

export async function restoreAndWait(
  server: Server,
  addon: Addon,
  backup: Pick<Backup, "id">,
): Promise<void> {
  await beginRestore(server, addon, backup);
  expect(await endOfRestore(server, addon)).toMatchObject({ status: "completed", error: null });
}
