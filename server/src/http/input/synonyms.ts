/** Other products' names for our fields, which an edit distance would not match. */
const synonyms: Readonly<Record<string, readonly string[]>> = {
  agent_id: ["agent"],
  branch: ["production_branch", "git_branch"],
  cmd: ["command"],
  code: ["source", "files"],
  content: ["input", "text"],
  cpu: ["cpus", "vcpu", "size"],
  cpus: ["size"],
  directory: ["cwd", "path"],
  environment: ["env", "variables", "env_vars"],
  environment_variables: ["env_vars", "env"],
  envs: ["env", "env_vars"],
  env: ["env_vars"],
  filename: ["path"],
  image: ["template", "base_template"],
  instructions: ["system_prompt", "system"],
  language: ["runtime"],
  lifetime: ["timeout_seconds"],
  max_tokens: ["max_output_tokens", "limit_tokens"],
  memory: ["memory_mb", "size"],
  message: ["input"],
  messages: ["input"],
  model_id: ["model"],
  prompt: ["input", "system_prompt"],
  repository: ["repo_url"],
  repo: ["repo_url"],
  script: ["command", "code"],
  system: ["system_prompt", "instructions"],
  timeout: ["timeout_seconds", "timeout_ms"],
  timeout_ms: ["timeout_seconds"],
  title: ["name"],
  tools: ["toolsets"],
  ttl: ["timeout_seconds"],
  url: ["repo_url"],
  working_directory: ["cwd"],
  workdir: ["cwd"],
};

/** Returns the first name in `known` with the same meaning as `word`. */
export function synonymIn(word: string, known: readonly string[]): string | undefined {
  // `Object.hasOwn`, because a request may use `constructor` as a field.
  const names = Object.hasOwn(synonyms, word) ? synonyms[word]! : [];
  return names.find((name) => known.includes(name));
}
