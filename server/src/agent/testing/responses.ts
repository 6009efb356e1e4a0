/** Imitates the streams of OpenAI's `/v1/responses`, and its errors for invalid requests. */
import type { Json } from "./agent-app.ts";
import type { Turn } from "./model-server.ts";

/** An item of a response: reasoning with summaries and encrypted content, a text, or a call. */
export type Item =
  | { thought: readonly string[]; sealed: string | null }
  | { text: string; phase?: string }
  | { call: string; arguments: string };

export function responses(items: readonly Item[]): Turn {
  const head = { id: "resp_1", object: "response", created_at: 1, model: "gpt-5", tools: [] };
  const usage = {
    input_tokens: 10,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: 5,
    output_tokens_details: { reasoning_tokens: 3 },
    total_tokens: 15,
  };
  const streamed = items.map(streamedItem);
  const output = streamed.map(({ item }) => item);
  const events: Json[] = [
    { type: "response.created", response: { ...head, status: "in_progress", output: [] } },
    { type: "response.in_progress", response: { ...head, status: "in_progress", output: [] } },
    ...streamed.flatMap(({ events: of }) => of),
    { type: "response.completed", response: { ...head, status: "completed", output, usage } },
  ];
  const lines = events.map(
    (event, sequence_number) =>
      `event: ${event.type}\ndata: ${JSON.stringify({ ...event, sequence_number })}\n\n`,
  );
  return { raw: lines.join("") };
}

function streamedItem(of: Item, output_index: number): { item: Json; events: Json[] } {
  if ("thought" in of) return reasoningEvents(of, output_index);
  return "call" in of ? call(of, output_index) : message(of, output_index);
}

function reasoningEvents(
  { thought: texts, sealed }: Extract<Item, { thought: unknown }>,
  output_index: number,
) {
  const item_id = `rs_${output_index}`;
  const summary = texts.map((text) => ({ type: "summary_text", text }));
  const item = { id: item_id, type: "reasoning", summary, encrypted_content: sealed };
  const begun = { ...item, summary: [], encrypted_content: sealed && "not yet" };
  const at = (summary_index: number) => ({ item_id, output_index, summary_index });
  return {
    item,
    events: [
      { type: "response.output_item.added", output_index, item: begun },
      ...summary.flatMap((part, index) => [
        { type: "response.reasoning_summary_part.added", ...at(index), part: { ...part, text: "" } },
        { type: "response.reasoning_summary_text.delta", ...at(index), delta: part.text },
        { type: "response.reasoning_summary_text.done", ...at(index), text: part.text },
        { type: "response.reasoning_summary_part.done", ...at(index), part },
      ]),
      { type: "response.output_item.done", output_index, item },
    ],
  };
}

function message({ text, phase }: Extract<Item, { text: unknown }>, output_index: number) {
  const item_id = `msg_${output_index}`;
  const part = { type: "output_text", text, annotations: [] };
  const item = {
    id: item_id,
    type: "message",
    role: "assistant",
    status: "completed",
    content: [part],
    phase,
  };
  const at = { item_id, output_index, content_index: 0 };
  return {
    item,
    events: [
      { type: "response.output_item.added", output_index, item: { ...item, content: [] } },
      { type: "response.content_part.added", ...at, part: { ...part, text: "" } },
      { type: "response.output_text.delta", ...at, delta: text },
      { type: "response.output_text.done", ...at, text },
      { type: "response.content_part.done", ...at, part },
      { type: "response.output_item.done", output_index, item },
    ],
  };
}

function call({ call: name, arguments: text }: Extract<Item, { call: unknown }>, output_index: number) {
  const item_id = `fc_${output_index}`;
  const item = { id: item_id, type: "function_call", call_id: `call_${output_index}`, name, arguments: text };
  const at = { item_id, output_index };
  return {
    item: { ...item, status: "completed" },
    events: [
      { type: "response.output_item.added", output_index, item: { ...item, arguments: "" } },
      { type: "response.function_call_arguments.delta", ...at, delta: text },
      { type: "response.function_call_arguments.done", ...at, arguments: text },
      { type: "response.output_item.done", output_index, item: { ...item, status: "completed" } },
    ],
  };
}

/**
 * Returns the error that an account with zero data retention gets for missing items. `sealed`: encrypted contents that
 * belong to this account.
 */
export function unfit(body: Json, sealed: readonly string[]): Turn | undefined {
  const refusal = (error: string): Turn => ({ status: 400, error });
  for (const [index, item] of body.input.entries()) {
    if (item.type === "item_reference" || (item.type === "reasoning" && !item.encrypted_content))
      return refusal(`Item with id '${item.id}' not found. Items are not persisted for Zero Data Retention.`);
    if (item.type === "reasoning" && !sealed.includes(item.encrypted_content))
      return refusal(`The encrypted content for item ${item.id} could not be verified.`);
    if (item.type === "reasoning" && body.input[index + 1]?.role === "user")
      return refusal(
        `Item '${item.id}' of type 'reasoning' was provided without its required following item.`,
      );
    if (
      item.type === "function_call" &&
      item.id &&
      !body.input.some(({ type }: Json) => type === "reasoning")
    )
      return refusal(
        `Item '${item.id}' of type 'function_call' was provided without its required 'reasoning' item.`,
      );
  }
  return undefined;
}
