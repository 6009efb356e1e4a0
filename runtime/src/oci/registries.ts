/**
 * Where this host's own package clients get packages from, as variables that the clients of a build read. Nothing where
 * they are as they came: every client knows its own registry. Credentials are left out; a build is anybody's.
 */
import { run } from "../exec.ts";

const npm = ["npm", "config", "get", "registry"];
/** What npm says where nobody configured anything. */
const npmItself = [...npm, "--userconfig=/dev/null", "--globalconfig=/dev/null"];
/** Debian's own: what stands first on PATH may be a version manager's stand-in. */
const pip = ["/usr/bin/python3", "-m", "pip", "config", "list"];
const ASK_MS = 10_000;

export async function hostRegistries(): Promise<Record<string, string>> {
  const bare = Object.entries(process.env).filter(([name]) => !/^npm_config_/i.test(name));
  const [forNpm, usual, forPip] = await Promise.all([
    ask(npm, process.env),
    ask(npmItself, Object.fromEntries(bare)),
    ask(pip, process.env),
  ]);
  return registriesOf(forNpm, usual, forPip);
}

async function ask(argv: readonly string[], env: NodeJS.ProcessEnv): Promise<string> {
  const asked = run(argv, { timeoutMs: ASK_MS, env, cwd: "/" }).catch(() => undefined);
  return (await asked)?.stdout ?? "";
}

/** Of what the clients print. Pure. */
export function registriesOf(npm: string, npmItself: string, pip: string): Record<string, string> {
  const registry = npm.trim() === npmItself.trim() ? undefined : addressOf(npm.trim());
  const index = addressOf(/^(?:global|:env:)\.index-url='(.*)'$/m.exec(pip)?.[1]);
  return {
    ...(registry === undefined ? {} : { npm_config_registry: registry }),
    ...(index === undefined ? {} : { PIP_INDEX_URL: index, UV_DEFAULT_INDEX: index }),
  };
}

function addressOf(value: string | undefined): string | undefined {
  const address = URL.parse(value ?? "");
  if (!address || !/^https?:$/.test(address.protocol)) return undefined;
  address.username = "";
  address.password = "";
  return address.href;
}
