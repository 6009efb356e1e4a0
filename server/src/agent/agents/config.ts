/**
 * What an agent is: the config of a version, whole. It is parsed once, when it is published, with every default
 * filled in, and read as it was ever after: a default that changes later changes no version that exists.
 */
import { z } from "zod";

export const providers = ["anthropic", "openai", "mistral", "openai_compatible"] as const;
export type Provider = (typeof providers)[number];

const modelId = z.string().min(1).max(200).describe("The provider's own name of the model.");
const credentialId = z.string().max(64).describe("A model credential of the same account: `mcr_…`.");
const policy = z.enum(["allow", "ask", "deny"]);
const seconds = (min: number, max: number) => z.int().min(min).max(max);

const images = z
  .boolean()
  .optional()
  .describe(
    "Whether the model gets the images that tools return. Default: true for models that are known to take images. Otherwise it gets a note in their place.",
  );

const Model = z.strictObject({
  provider: z.enum(providers),
  id: modelId,
  credential_id: credentialId,
  fallbacks: z
    .array(z.strictObject({ id: modelId, credential_id: credentialId, images }))
    .max(5)
    .optional()
    .describe("Tried in this order where the model fails; each speaks to its credential's provider."),
  temperature: z.number().min(0).max(2).optional(),
  max_output_tokens: z.int().min(1).max(1_000_000).optional().describe("Of one call."),
  reasoning: z.enum(["none", "minimal", "low", "medium", "high"]).optional(),
  images,
  silence_seconds: seconds(10, 300)
    .optional()
    .describe(
      "Seconds without data from the model's server after which the call is retried, for example 60. Default 180.",
    ),
});

const ToolsetUse = z.strictObject({
  toolset_id: z.string().max(64),
  allow: z.array(z.string().min(1).max(200)).max(500).default(["*"]),
  policy: policy.optional(),
  tools: z.record(z.string().min(1).max(200), z.strictObject({ policy })).optional(),
  elicitation: z
    .enum(["defaults", "decline"])
    .optional()
    .describe(
      "Response to an MCP server's questions to the user (elicitation): `defaults` accepts the defaults of the fields, `decline` declines. If absent, elicitation is not offered to the server.",
    ),
  required: z.boolean().default(false),
});

const vmTools = ["exec", "read_file", "write_file", "run_code"] as const;

const Vm = z.strictObject({
  enabled: z.boolean().default(true),
  template: z.string().min(1).max(200).default("debian-12"),
  size: z.enum(["small", "medium", "large"]).default("small"),
  network: z.enum(["off", "restricted", "open"]).default("restricted"),
  allow_domains: z.array(z.string().max(253)).max(100).default([]),
  volume: z.string().max(64).nullable().default(null),
  park_after_seconds: seconds(0, 86_400).default(300),
  tools: z
    .array(z.enum(vmTools))
    .max(vmTools.length)
    .default([...vmTools]),
  policy: z.enum(["allow", "ask"]).optional(),
});

const Platform = z.strictObject({
  scopes: z
    .array(z.enum(["platform:read", "platform:write", "sandboxes:read", "sandboxes:write"]))
    .max(4)
    .default([]),
  policy: policy.optional(),
});

const Approvals = z.strictObject({
  default: policy.default("allow"),
  expires_in_seconds: seconds(1, 30 * 86_400).default(86_400),
  on_expire: z.enum(["deny", "fail"]).default("deny"),
});

const Connections = z.strictObject({
  wait_minutes: z
    .int()
    .min(0)
    .max(43_200)
    .default(0)
    .describe(
      "Minutes for which a run waits for its end user to sign in to a toolset, for example 60. With 0 the run does not wait, and the model gets a note that a sign-in is needed. Default 0.",
    ),
});

const Memory = z.strictObject({
  enabled: z.boolean().default(true),
  max_entries: z.int().min(1).max(10_000).default(200),
  max_value_bytes: z.int().min(1).max(65_536).default(4096),
});

const Limits = z.strictObject({
  max_steps: z.int().min(1).max(1000).default(75).describe("Model calls."),
  max_seconds: seconds(1, 86_400).default(900).describe("Of work; while a person decides the clock stands."),
  max_tokens: z
    .int()
    .min(1)
    .max(100_000_000)
    .default(500_000)
    .describe(
      "Maximum of tokens read and written in all steps. Each step reads its whole input again, and cached input counts.",
    ),
  tool_timeout_seconds: seconds(1, 3600).default(120),
});

const Context = z.strictObject({
  compact_at_tokens: z.int().min(1000).max(10_000_000).default(120_000),
  keep_last_messages: z.int().min(2).max(1000).default(20),
  compaction: z
    .enum(["summarize", "drop"])
    .default("summarize")
    .describe(
      "Treatment of older messages past `compact_at_tokens`: `summarize` has the model write a summary of them, `drop` omits them. Default `summarize`; versions published without this field use `drop`.",
    ),
  pin: z
    .array(z.string().min(1).max(2_000))
    .max(50)
    .optional()
    .describe("Facts that the model gets in every step, even when older messages are left out."),
});

export const defaultIdleMinutes = 60;

const Session = z.strictObject({
  idle_minutes: z
    .int()
    .min(1)
    .max(43_200)
    .default(defaultIdleMinutes)
    .describe("Minutes without a run after which a session ends, for example 1440."),
});

const Output = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("text") }),
  z.strictObject({
    type: z.literal("json_schema"),
    schema: z.record(z.string(), z.unknown()).describe("JSON Schema, draft 2020-12."),
  }),
]);

export const AgentConfig = z
  .strictObject({
    model: Model,
    system: z.string().max(200_000).optional(),
    toolsets: z.array(ToolsetUse).max(50).default([]),
    vm: Vm.optional(),
    platform: Platform.optional(),
    approvals: Approvals.prefault({}),
    connections: Connections.optional(),
    memory: Memory.optional(),
    limits: Limits.prefault({}),
    context: Context.prefault({}),
    session: Session.optional(),
    output: Output.default({ type: "text" }),
    metadata: z.record(z.string().max(200), z.unknown()).optional(),
  })
  .meta({ id: "AgentConfig" });
export type AgentConfig = z.output<typeof AgentConfig>;
