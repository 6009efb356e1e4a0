/** All database engines. */
import type { Engine, Kind } from "./engine.ts";
import { postgres } from "./postgres.ts";
import { redis } from "./redis.ts";

export type Engines = Readonly<Record<Kind, Engine>>;

export const engines: Engines = { postgres, redis };
