/** What is said in a session while one process carries out a run in it, which nobody else adds to: read once. */
import type { Db } from "#schema.ts";
import type { Summary } from "../runs/engine/prompt.ts";
import { askedIn, type Message } from "../models/messages.ts";
import { dropOldPictures } from "../models/pictures/drop-old.ts";
import { lastMessages, type SaidMessage } from "./store.ts";

/** Of what a model is told: more than any takes, and as much as many runs at once may have in memory. */
const toldMaxBytes = 8 * 1024 ** 2;

export type Said = Omit<SaidMessage, "seq">;

export class Conversation {
  /** What was said last, at the least all since the last question. */
  readonly said: Said[] = [];
  /** How many messages were said before that. */
  before: number;
  /** The last summary of older messages. */
  summary: Summary | undefined;

  constructor(before: number, said: readonly Said[]) {
    this.before = before;
    this.add(said);
  }

  static async read(db: Db, sessionId: string): Promise<Conversation> {
    const rows = await lastMessages(db, sessionId, toldMaxBytes);
    const [first, second] = rows;
    const isApart = first?.kind === "summary" && second !== undefined && second.seq > first.seq + 1;
    const said = isApart ? rows.slice(1) : rows;
    const conversation = new Conversation((said[0]?.seq ?? 1) - 1, said);
    if (isApart) conversation.summary ??= summaryOf(first);
    return conversation;
  }

  /** Whether the last thing that was said asks for tools whose outcomes nobody told. */
  get hasUntoldCalls(): boolean {
    return askedIn(this.said.at(-1)?.message as Message | undefined).length > 0;
  }

  /** What was stored just now. */
  add(more: readonly Said[]): void {
    const summary = more.findLast(({ kind }) => kind === "summary");
    if (summary) this.summary = summaryOf(summary);
    this.said.push(...more.map(({ run_id, kind, message, bytes }) => ({ run_id, kind, message, bytes })));
    dropOldPictures(this.said);
    const question = this.said.findLastIndex(({ kind }) => kind === "input");
    let bytes = this.said.reduce((sum, one) => sum + one.bytes, 0);
    let from = 0;
    for (; from < question && bytes > toldMaxBytes; from += 1) bytes -= this.said[from]!.bytes;
    this.said.splice(0, from);
    this.before += from;
  }
}

function summaryOf({ message }: Said): Summary {
  const { through, ...rest } = message as Message & { through: number };
  return { message: rest, through };
}
