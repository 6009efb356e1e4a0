/** What callers of functions were answered and how often they waited for a wake, minute by minute. */
import type { App } from "#app.ts";
import { type MinuteSink, RequestRecorder } from "../metrics/recorder.ts";
import { forgetMinutesBefore, readMinutes, writeMinutes } from "./store.ts";

export function functionRecorder(app: Pick<App, "db" | "clock" | "log">): RequestRecorder {
  const sink: MinuteSink = {
    write: (rows) => writeMinutes(app.db, rows),
    forgetBefore: (before) => forgetMinutesBefore(app.db, before),
  };
  return new RequestRecorder(app, sink);
}

/** From this minute on, the oldest first, by each process that counted. Whoever asks may see the function. */
export const minutesOf = readMinutes;
