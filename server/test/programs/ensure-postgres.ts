/** A server's first minute and no more: brings PostgreSQL up on a data directory, says where, and then stays. */
import { ensureEmbedded } from "#db/embedded/ensure-embedded.ts";

process.stdout.write(`${JSON.stringify(await ensureEmbedded(process.argv[2]!))}\n`);
setInterval(() => {}, 60_000);
