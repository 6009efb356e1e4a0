/** Records responses and wakes of functions in minutes. */
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

/**
 * Returns the minutes from the given one on, oldest first. A minute has a row for each process that counted. The caller
 * has checked access.
 */
export const minutesOf = readMinutes;
