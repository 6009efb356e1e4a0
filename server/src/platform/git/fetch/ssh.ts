/**
 * Configuration of ssh for one checkout: a configuration file, a key and the trusted host keys, in a directory that is
 * removed afterwards. Ssh connects to a vetted address under the host's own name. It never prompts, offers no key but
 * the project's, and forwards nothing.
 */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { SshRemote } from "./remotes.ts";

export interface SshIdentity {
  /** Null if the host requires no key. */
  privateKey: string | null;
  /** Lines of known_hosts from earlier fetches. */
  knownHosts: string;
  /** The operator's list of known hosts; if set, only its hosts are trusted. */
  strictFile: string | null;
}

export interface Ssh {
  env: Record<string, string>;
  /** Trusted host keys: the earlier ones, and those added at first use. */
  knownHosts(): Promise<string>;
}

/** Limit of the host keys of one project. */
const knownHostsMaxBytes = 32 * 1024;

export async function prepareSsh(
  directory: string,
  remote: SshRemote,
  address: string,
  { privateKey, knownHosts, strictFile }: SshIdentity,
): Promise<Ssh> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const [config, key, known] = ["config", "key", "known_hosts"].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ];
  if (privateKey !== null) await writeFile(key, privateKey, { mode: 0o600 });
  await writeFile(known, knownHosts, { mode: 0o600 });
  const alias = remote.port === null ? remote.host : `[${remote.host}]:${remote.port}`;
  const lines = {
    HostName: address,
    HostKeyAlias: alias,
    UserKnownHostsFile: quotePath(strictFile ?? known),
    GlobalKnownHostsFile: "/dev/null",
    StrictHostKeyChecking: strictFile === null ? "accept-new" : "yes",
    UpdateHostKeys: "no",
    HashKnownHosts: "no",
    IdentityFile: privateKey === null ? "none" : quotePath(key),
    IdentitiesOnly: "yes",
    IdentityAgent: "none",
    BatchMode: "yes",
    PreferredAuthentications: "none,publickey",
    ClearAllForwardings: "yes",
    ForwardAgent: "no",
    PermitLocalCommand: "no",
    ProxyCommand: "none",
    ControlMaster: "no",
    ControlPath: "none",
    ConnectTimeout: "15",
    ServerAliveInterval: "15",
    ServerAliveCountMax: "4",
    LogLevel: "ERROR",
  };
  const text = Object.entries(lines).map(([name, value]) => `  ${name} ${value}`);
  await writeFile(config, ["Host *", ...text, ""].join("\n"), { mode: 0o600 });
  return {
    env: {
      // Git runs this in sh, so the text is constant; host and path follow as arguments.
      GIT_SSH_COMMAND: 'exec ssh -F "$KONTOR_SSH_CONFIG"',
      GIT_SSH_VARIANT: "ssh",
      KONTOR_SSH_CONFIG: config,
    },
    async knownHosts() {
      const now = await readFile(known, "utf8");
      return Buffer.byteLength(now) > knownHostsMaxBytes ? knownHosts : now;
    },
  };
}

/** Quotes a path for ssh_config(5), which has no escape for a quote and expands percent signs. */
function quotePath(path: string): string {
  return `"${path.replaceAll("%", "%%")}"`;
}
