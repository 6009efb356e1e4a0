import { expect, test } from "vitest";
import { RuntimeError } from "../driver.ts";
import { explain } from "./builder.ts";

const failed = new RuntimeError("failed", "buildah exited with 1", {
  details: { argv0: "buildah", code: 1 },
});

test.each([
  [
    'Error: building at STEP "COPY --from=build /app/dist /srv/": checking on sources under "/store/overlay/a915/merged": copier: stat: "/app/dist": no such file or directory',
    "COPY found no /app/dist: no earlier step created it. Create it in a step before COPY, or correct the path.",
  ],
  [
    'kontor: The build wrote no directory dist. Set output_directory.\nError: building at STEP "RUN test": while running runtime: exit status 1',
    "The build wrote no directory dist. Set output_directory.",
  ],
  [
    'Error: building at STEP "RUN false": while running runtime: exit status 1',
    "RUN false failed: exit status 1",
  ],
])("explains the builder's output %j as %j", (last, message) => {
  expect(explain(failed, last)).toMatchObject({ kind: "image_failed", message });
});
