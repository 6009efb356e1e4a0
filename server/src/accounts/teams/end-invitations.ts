/** How an invitation ends, whatever ended it: the row goes, and with it the notification of the invited person. */
import type { Transaction } from "#db/db.ts";
import { forgetNews } from "../notifications/notifications.ts";
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
    if (workspaceId !== undefined) await forgetNews(tx, workspaceId, [id]);
  }
}

/** In the transaction that takes a role or the membership from a person: invitations they sent end with it. */
export async function endInvitationsBy(tx: Transaction, teamId: string, userId: string): Promise<void> {
  await endInvitations(tx, await listInvitationsBy(tx, teamId, userId));
}

/** In the transaction that adds a person without an invitation. */
export async function endInvitationsTo(tx: Transaction, teamId: string, email: string): Promise<void> {
  await endInvitations(tx, await listInvitationsTo(tx, teamId, email));
}
