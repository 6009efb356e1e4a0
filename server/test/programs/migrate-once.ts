/**
 * A process that migrates the database given as JSON, and prints the migrations it ran; a test runs several at once.
 */
import type { Connection } from "#db/db.ts";
import { migrate } from "#db/migrate.ts";

process.stdout.write(JSON.stringify(await migrate(JSON.parse(process.argv[2]!) as Connection)));
