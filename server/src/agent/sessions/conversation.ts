/**
 * Messages of a session in memory while one process executes a run of the session. No other process adds messages
 * meanwhile, so the process reads them once.
 */
import type { Db } from "#schema.ts";
import type { Summary } from "../runs/engine/prompt.ts";
import { toolCallsIn, type Message } from "../models/messages.ts";
import { dropOldPictures } from "../models/pictures/drop-old.ts";
import { lastMessages, type StoredMessage } from "./store.ts";

/**
 * Maximum size of messages in memory. The limit exceeds the context of any model, and many concurrent runs fit in
 * memory.
 */
const conversationMaxBytes = 8 * 1024 ** 2;

export type ConversationMessage = Omit<StoredMessage, "seq">;

export class Conversation {
  /** The newest messages, at least those since the last input. */
  readonly said: ConversationMessage[] = [];
  /** Number of messages that are older than the messages in `said`. */
  before: number;
  /** The last summary of older messages. */
  summary: Summary | undefined;

  constructor(before: number, said: readonly ConversationMessage[]) {
    this.before = before;
    this.add(said);
  }

  static async read(db: Db, sessionId: string): Promise<Conversation> {
    const rows = await lastMessages(db, sessionId, conversationMaxBytes);
    const [first, second] = rows;
    const isApart = first?.kind === "summary" && second !== undefined && second.seq > first.seq + 1;
    const said = isApart ? rows.slice(1) : rows;
    const conversation = new Conversation((said[0]?.seq ?? 1) - 1, said);
    if (isApart) conversation.summary ??= summaryOf(first);
    return conversation;
  }

  /** True if the last message has tool calls without results. */
  get hasOpenCalls(): boolean {
    return toolCallsIn(this.said.at(-1)?.message as Message | undefined).length > 0;
  }

  /** Appends messages that were just stored. */
  add(more: readonly ConversationMessage[]): void {
    const summary = more.findLast(({ kind }) => kind === "summary");
    if (summary) this.summary = summaryOf(summary);
    this.said.push(...more.map(({ run_id, kind, message, bytes }) => ({ run_id, kind, message, bytes })));
    dropOldPictures(this.said);
    const question = this.said.findLastIndex(({ kind }) => kind === "input");
    let bytes = this.said.reduce((sum, one) => sum + one.bytes, 0);
    let from = 0;
    for (; from < question && bytes > conversationMaxBytes; from += 1) bytes -= this.said[from]!.bytes;
    this.said.splice(0, from);
    this.before += from;
  }
}

function summaryOf({ message }: ConversationMessage): Summary {
  const { through, ...rest } = message as Message & { through: number };
  return { message: rest, through };
}
