/**
 * Attempts of a machine's process to reach a destination, run inside a namespace. Reads a JSON list of
 * attempts from its argument, makes all of them at once, and prints a JSON list of results. Needs only Node
 * and perl-base (raw sockets), which every Debian has.
 */
import { spawn } from "node:child_process";
import dgram from "node:dgram";
import dns from "node:dns";
import { once } from "node:events";
import net from "node:net";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

export type ProbeAttempt =
  /** Connects, sends a request, waits for any reply. `source` binds another address first. */
  | { kind: "tcp"; host: string; port: number; source?: string }
  /** Sends `bytes` (above the MTU: fragments) and waits for any reply. */
  | { kind: "udp"; host: string; port: number; bytes?: number; source?: string }
  /** Sends a query for an A record to the server. */
  | { kind: "dns"; server: string; name: string }
  /** Sends an echo request and waits for the reply. */
  | { kind: "icmp"; host: string };

/** `answered` holds the reply. `refused` holds the error's code, or `silence` after the deadline. */
export type ProbeResult = { answered: string } | { refused: string };

/** Time after which an attempt counts as silent. A refusal arrives within milliseconds. */
const DEADLINE_MS = 1_000;

const ECHO_REQUEST = `use Socket;
socket(my $s, PF_INET, SOCK_RAW, 1) or exit 5;
my $p = pack("C2n3a8", 8, 0, 0, $$ & 0xffff, 1, "probe...");
my $c = 0; $c += $_ for unpack("n*", $p);
$c = ($c >> 16) + ($c & 0xffff); $c += $c >> 16;
substr($p, 2, 2) = pack("n", ~$c & 0xffff);
$SIG{ALRM} = sub { exit 3 }; alarm 1;
send($s, $p, 0, sockaddr_in(0, inet_aton($ARGV[0]))) or exit 5;
while (recv($s, my $r, 2048, 0)) { my $t = ord(substr($r, 20, 1)); exit 0 if $t == 0; exit 4 if $t == 3; }`;
const ECHO_ERRORS: Record<number, string> = { 3: "silence", 4: "EHOSTUNREACH" };

const TRY: {
  [Kind in ProbeAttempt["kind"]]: (attempt: Extract<ProbeAttempt, { kind: Kind }>) => Promise<string>;
} = {
  tcp: ({ host, port, source }) =>
    new Promise((resolve, reject) => {
      const socket = net.connect({ host, port, ...(source === undefined ? {} : { localAddress: source }) });
      socket.once("error", reject);
      socket.once("data", (data) => {
        resolve(data.toString());
        socket.destroy();
      });
      socket.once("connect", () => socket.write("GET / HTTP/1.0\r\n\r\n"));
    }),
  udp: ({ host, port, bytes = 4, source }) =>
    new Promise((resolve, reject) => {
      const socket = dgram.createSocket(net.isIPv6(host) ? "udp6" : "udp4");
      socket.on("error", reject);
      socket.once("message", (message) => resolve(`${message.length} bytes`));
      socket.once("connect", () => socket.send(Buffer.alloc(bytes, "x")));
      socket.bind(0, source, () => socket.connect(port, host));
    }),
  dns: async ({ server, name }) => {
    const resolver = new dns.promises.Resolver({ timeout: DEADLINE_MS, tries: 1 });
    resolver.setServers([server]);
    return (await resolver.resolve4(name)).join(",");
  },
  icmp: async ({ host }) => {
    const child = spawn("perl", ["-e", ECHO_REQUEST, host], { stdio: "inherit" });
    const [code] = (await once(child, "exit")) as [number];
    if (code === 0) return "echo reply";
    throw Object.assign(new Error(), { code: ECHO_ERRORS[code] ?? `perl exited with ${code}` });
  },
};

async function makeAttempt(attempt: ProbeAttempt): Promise<ProbeResult> {
  let timer: NodeJS.Timeout | undefined;
  try {
    const answer = (TRY[attempt.kind] as (attempt: ProbeAttempt) => Promise<string>)(attempt);
    const deadline = new Promise<never>((_, reject) => {
      timer = setTimeout(reject, DEADLINE_MS + 500, Object.assign(new Error(), { code: "silence" }));
    });
    return { answered: await Promise.race([answer, deadline]) };
  } catch (error) {
    return { refused: String((error as NodeJS.ErrnoException).code) };
  } finally {
    clearTimeout(timer);
  }
}

/** Makes the attempts from inside a namespace, and returns their results. */
export async function probe(netnsPath: string, attempts: ProbeAttempt[]): Promise<ProbeResult[]> {
  const argv = [
    `--net=${netnsPath}`,
    process.execPath,
    fileURLToPath(import.meta.url),
    JSON.stringify(attempts),
  ];
  const child = spawn("nsenter", argv, { stdio: ["ignore", "pipe", "inherit"] });
  return JSON.parse(await text(child.stdout)) as ProbeResult[];
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const attempts = JSON.parse(process.argv[2] ?? "[]") as ProbeAttempt[];
  process.stdout.write(JSON.stringify(await Promise.all(attempts.map(makeAttempt))), () => process.exit());
}
