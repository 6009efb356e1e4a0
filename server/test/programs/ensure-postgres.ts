/** Starts PostgreSQL on a data directory like a server, prints its address, and then waits. */
import { ensureEmbedded } from "#db/embedded/ensure-embedded.ts";

process.stdout.write(`${JSON.stringify(await ensureEmbedded(process.argv[2]!))}\n`);
setInterval(() => {}, 60_000);
