/** Ends invitations: deletes the row and the invited person's notification. */
import type { Transaction } from "#schema.ts";
import { deleteNotifications } from "../notifications/notifications.ts";
import {
  deleteInvitation,
  findPersonalWorkspace,
  type InvitationRow,
  listInvitationsBy,
  listInvitationsTo,
} from "./store.ts";

export async function endInvitations(tx: Transaction, invitations: readonly InvitationRow[]): Promise<void> {
  for (const { id, email } of invitations) {
    await deleteInvitation(tx, id);
    const workspaceId = await findPersonalWorkspace(tx, email);
    if (workspaceId !== undefined) await deleteNotifications(tx, workspaceId, [id]);
  }
}

/** Ends the invitations that a person sent, in the transaction that changes their role or removes them. */
export async function endInvitationsBy(tx: Transaction, teamId: string, userId: string): Promise<void> {
  await endInvitations(tx, await listInvitationsBy(tx, teamId, userId));
}

/** Ends the invitations to an address, in the transaction that adds its person directly. */
export async function endInvitationsTo(tx: Transaction, teamId: string, email: string): Promise<void> {
  await endInvitations(tx, await listInvitationsTo(tx, teamId, email));
}
