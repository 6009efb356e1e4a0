/**
 * The configuration of an agent's version. A publication parses the configuration and stores it with all defaults. So a
 * later change of a default changes no existing version.
 */
import { z } from "zod";

export const providers = ["anthropic", "openai", "mistral", "openai_compatible"] as const;
export type CredentialProvider = (typeof providers)[number];
/** Providers with a server, and the built-in model, which has no credential. */
export type Provider = CredentialProvider | "echo";

const modelId = z.string().min(1).max(200).describe("Provider's name of the model.");
const credentialId = z.string().max(64).describe("Id of a model credential of the same workspace: `mcr_…`.");
const policy = z.enum(["allow", "ask", "deny"]);
const seconds = (min: number, max: number) => z.int().min(min).max(max);

const images = z
  .boolean()
  .optional()
  .describe(
    "True gives the model the images that tools return; false gives it a note in their place. Default: true for models that are known to take images.",
  );

const Model = z.strictObject({
  provider: z
    .enum([...providers, "echo"])
    .describe(
      "Provider of the model: the provider of the credential, or `echo`, the built-in model that repeats its input and needs no key.",
    ),
  id: modelId,
  credential_id: credentialId
    .optional()
    .describe("Id of a model credential of the same workspace: `mcr_…`. Required, except with `echo`."),
  fallbacks: z
    .array(z.strictObject({ id: modelId, credential_id: credentialId, images }))
    .max(5)
    .optional()
    .describe(
      "Models that are tried in this order if the model fails, at most 5. Each uses the provider of its credential. Default: none.",
    ),
  temperature: z
    .number()
    .min(0)
    .max(2)
    .optional()
    .describe("Sampling temperature, from 0 to 2. Default: the provider's."),
  max_output_tokens: z
    .int()
    .min(1)
    .max(1_000_000)
    .optional()
    .describe("Maximum number of output tokens of one model call. Default: the provider's."),
  reasoning: z
    .enum(["none", "minimal", "low", "medium", "high"])
    .optional()
    .describe("Effort that the model spends on reasoning before it responds. Default: the provider's."),
  images,
  silence_seconds: seconds(10, 300)
    .optional()
    .describe(
      "Seconds without data from the model's server after which the call is retried, for example 60. Default 180.",
    ),
});

const ToolsetFields = z.strictObject({
  toolset_id: z.string().max(64).describe("Id of a toolset of the same workspace: `tst_…`."),
  allow: z
    .array(z.string().min(1).max(200))
    .max(500)
    .default(["*"])
    .describe('Original names of the tools that the agent gets; `*` stands for all. Default `["*"]`.'),
  policy: policy
    .optional()
    .describe(
      "Policy of the toolset's tools: `allow` calls at once, `ask` needs an approval, `deny` hides the tool from the model. Default: the tool's override, else `approvals.default`.",
    ),
  tools: z
    .record(
      z.string().min(1).max(200),
      z.strictObject({
        policy: policy.describe(
          "Policy of this tool: `allow` calls at once, `ask` needs an approval, `deny` hides it from the model.",
        ),
      }),
    )
    .optional()
    .describe("Policies of single tools by original name. They take precedence over `policy`."),
  elicitation: z
    .enum(["defaults", "decline", "person"])
    .optional()
    .describe(
      "Response to an MCP server's elicitation requests: `defaults` accepts the defaults of the fields, `decline` declines, `person` makes each one an approval of kind `elicitation` and holds the call open. Default: elicitation is not offered to the server.",
    ),
  elicitation_seconds: seconds(10, 86_400)
    .optional()
    .describe(
      "Seconds that a person has to answer a question, with elicitation `person`. The server then gets `cancel`. Default 900.",
    ),
  required: z
    .boolean()
    .default(false)
    .describe("True fails the run with `tool_unavailable` if the toolset cannot be used. Default false."),
});

const ToolsetUse = ToolsetFields.refine(
  ({ elicitation, elicitation_seconds: seconds }) => seconds === undefined || elicitation === "person",
  {
    error: "requires elicitation `person`; set it, or remove elicitation_seconds",
    path: ["elicitation_seconds"],
  },
);

const vmTools = ["exec", "read_file", "write_file", "run_code"] as const;

const Vm = z.strictObject({
  enabled: z
    .boolean()
    .default(true)
    .describe("False gives sessions no machine; the other fields then have no effect. Default true."),
  template: z
    .string()
    .min(1)
    .max(200)
    .default("debian-12")
    .describe("Template of the machine: a built-in one or one of your own. Default `debian-12`."),
  size: z
    .enum(["small", "medium", "large"])
    .default("small")
    .describe(
      "Size of the machine: `small` has 1 vCPU and 1 GiB, `medium` 2 and 4 GiB, `large` 4 and 8 GiB. Default `small`.",
    ),
  network: z
    .enum(["off", "restricted", "open"])
    .default("restricted")
    .describe(
      "Network access: `off`, `restricted` to listed hosts, or `open`, which requires a tier above free. Default `restricted`.",
    ),
  allow_domains: z
    .array(z.string().max(253))
    .max(100)
    .default([])
    .describe(
      "Hosts that a `restricted` machine may reach, for example `api.example.com`. If empty, the installation's list applies.",
    ),
  volume: z
    .string()
    .max(64)
    .nullable()
    .default(null)
    .describe(
      "Name or id (`vol_…`) of a volume, mounted at `/persist` for one session at a time. Default null: no volume.",
    ),
  park_after_seconds: seconds(0, 86_400)
    .default(300)
    .describe(
      "Seconds without a run, or while a run waits for a person, after which the machine is paused to disk. Default 300.",
    ),
  tools: z
    .array(z.enum(vmTools))
    .max(vmTools.length)
    .default([...vmTools])
    .describe(
      "Machine tools that the agent gets. `run_code` requires a template with a code interpreter. Default: all.",
    ),
  policy: z
    .enum(["allow", "ask"])
    .optional()
    .describe(
      "Policy of the machine's tools: `allow` calls at once, `ask` needs an approval. Default: `approvals.default`.",
    ),
});

const Platform = z.strictObject({
  scopes: z
    .array(z.enum(["platform:read", "platform:write", "sandboxes:read", "sandboxes:write"]))
    .max(4)
    .default([])
    .describe(
      "Scopes of the agent's own identity. The token that publishes the version must have them too. Default: none.",
    ),
  policy: policy
    .optional()
    .describe(
      "Policy of the agent's tools for the APIs. Default: `approvals.default`, except that writes need an approval if that is `allow`.",
    ),
});

const Approvals = z.strictObject({
  default: policy
    .default("allow")
    .describe(
      "Policy of tools without another one: `allow` calls at once, `ask` needs an approval, `deny` hides the tool. Default `allow`.",
    ),
  expires_in_seconds: seconds(1, 30 * 86_400)
    .default(86_400)
    .describe("Seconds until an undecided approval expires, at most 30 days. Default 86400, a day."),
  on_expire: z
    .enum(["deny", "fail"])
    .default("deny")
    .describe(
      "Effect of an expired approval: `deny` denies the call and continues, `fail` ends the run with `approval_expired`. Default `deny`.",
    ),
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
  enabled: z
    .boolean()
    .default(true)
    .describe("False gives the agent no memory tools and no stored facts. Default true."),
  max_entries: z
    .int()
    .min(1)
    .max(10_000)
    .default(200)
    .describe("Maximum number of facts for each end user. Default 200."),
  max_value_bytes: z
    .int()
    .min(1)
    .max(65_536)
    .default(4096)
    .describe("Maximum size of a fact's value in bytes of UTF-8. Default 4096."),
});

const Limits = z.strictObject({
  max_steps: z
    .int()
    .min(1)
    .max(1000)
    .default(75)
    .describe("Maximum number of model calls in a run. Default 75."),
  max_seconds: seconds(1, 86_400)
    .default(900)
    .describe(
      "Maximum working time of a run in seconds. Time that it waits for a person does not count. Default 900.",
    ),
  max_tokens: z
    .int()
    .min(1)
    .max(100_000_000)
    .default(500_000)
    .describe(
      "Maximum number of input and output tokens in all steps. Each step reads its whole input again, and cached input counts. Default 500000.",
    ),
  tool_timeout_seconds: seconds(1, 3600)
    .default(120)
    .describe("Seconds after which a tool call is aborted; the model gets the failure. Default 120."),
});

const Context = z.strictObject({
  compact_at_tokens: z
    .int()
    .min(1000)
    .max(10_000_000)
    .default(120_000)
    .describe(
      "Estimated tokens past which older messages are compacted, at four characters a token. Default 120000.",
    ),
  keep_last_messages: z
    .int()
    .min(2)
    .max(1000)
    .default(20)
    .describe(
      "Maximum number of recent messages that a compaction keeps. They begin at an input, and the last input always stays. Default 20.",
    ),
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
    .describe(
      "Facts that the model gets in every step, even when older messages are left out. Default: none.",
    ),
});

export const defaultIdleMinutes = 60;

const Session = z.strictObject({
  idle_minutes: z
    .int()
    .min(1)
    .max(43_200)
    .default(defaultIdleMinutes)
    .describe("Minutes without a run after which a session ends, for example 1440. Default 60."),
});

const Output = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("text").describe("Output as plain text.") }),
  z.strictObject({
    type: z
      .literal("json_schema")
      .describe("Output as JSON that fits `schema`. The model gets one more try if its output does not fit."),
    schema: z.record(z.string(), z.unknown()).describe("JSON Schema (draft 2020-12) of the output."),
  }),
]);

export const AgentConfig = z
  .strictObject({
    model: Model.describe("Model that the agent runs on, with its settings and fallbacks."),
    system: z
      .string()
      .max(200_000)
      .optional()
      .describe("System message with the agent's instructions, at most 200,000 characters. Default: none."),
    toolsets: z
      .array(ToolsetUse)
      .max(50)
      .default([])
      .describe("Toolsets that the agent uses, at most 50. Default: none."),
    vm: Vm.optional().describe(
      "Linux machine of each session, made when a tool first needs it. Default: no machine.",
    ),
    platform: Platform.optional().describe(
      "Access of the agent to the platform and sandbox APIs. Default: none.",
    ),
    approvals: Approvals.prefault({}).describe("Default policy of tools, and expiry of approvals."),
    connections: Connections.optional().describe("Handling of sign-ins that a run needs."),
    memory: Memory.optional().describe(
      "Memory of facts about each end user, kept across sessions. Default: no memory.",
    ),
    limits: Limits.prefault({}).describe("Limits of each run. A resumed run gets them again."),
    context: Context.prefault({}).describe("Compaction of long conversations, and pinned facts."),
    session: Session.optional().describe("Expiry of the agent's sessions."),
    output: Output.default({ type: "text" }).describe("Format of the run's output. Default: plain text."),
    metadata: z
      .record(z.string().max(200), z.unknown())
      .optional()
      .describe("Data of your own, stored with the version. The agent does not use it."),
  })
  .meta({ id: "AgentConfig" });
export type AgentConfig = z.output<typeof AgentConfig>;
