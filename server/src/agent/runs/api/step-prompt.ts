/**
 * Renders the prompt of a step as it was sent to the model. A step stores the sources of its prompt. The session's
 * messages and the version's config never change.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { getVersion } from "#agent/agents/agents.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import { type Message, withoutReasoning } from "#agent/models/messages.ts";
import { dropOldPictures } from "#agent/models/pictures/drop-old.ts";
import { messagesBetween } from "#agent/sessions/store.ts";
import { promptExpired, stepNotFound } from "./run-errors.ts";
import { promptOf, type Summary } from "../engine/prompt.ts";
import { getRun } from "./read.ts";
import { isExpired, type StepPromptView } from "../schema.ts";
import { findStepPrompt } from "../store.ts";

export async function getStepPrompt(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
  wanted: string,
): Promise<StepPromptView> {
  const run = await getRun(app, actor, id);
  const step = /^[1-9]\d{0,5}$/.test(wanted) ? Number(wanted) : undefined;
  const found = step === undefined ? undefined : await findStepPrompt(app.db, id, step);
  if (step === undefined || !found) throw stepNotFound();
  const { prompt, model, tools } = found;
  if (!prompt || isExpired(run, app.clock.now())) throw promptExpired();
  const { before, last, summary: through, remembered, at_most: atMost } = prompt;
  const { said, summary } = await messagesBetween(app.db, run.session_id, { before, last, through });
  // Messages are missing if the session has ended, because its messages are then deleted.
  if (said.length < last - before || (through !== null && !summary)) throw promptExpired();
  dropOldPictures(said);
  const agent = { id: run.agent_id, latest_version: 0 };
  const { config } = await getVersion(app.db, agent, String(run.version));
  const told = said.map(({ kind, run_id, message }) => ({
    kind,
    message: run_id === id ? message : withoutReasoning(message as Message),
  }));
  const { messages } = promptOf(config as AgentConfig, told, {
    before,
    summary: summary && toSummary(summary.message),
    remembered: remembered ?? undefined,
    atMost: atMost ?? undefined,
  });
  const system = messages.filter(({ role }) => role === "system").map(({ content }) => content as string);
  const rest = messages.filter(({ role }) => role !== "system").map(withoutReasoning);
  return {
    run_id: id,
    step,
    model,
    system: system.length === 0 ? null : system.join("\n\n"),
    messages: rest.map(({ role, content }) => ({ role, content })),
    tools: (tools ?? []).map(({ name, description, inputSchema }) => ({
      name,
      description,
      parameters: inputSchema,
    })),
  };
}

function toSummary(stored: unknown): Summary {
  const { through, ...message } = stored as Message & { through: number };
  return { message, through };
}
