import { expect, test } from "vitest";
import { RuntimeError } from "../driver.ts";
import { explain } from "./builder.ts";

const failed = new RuntimeError("failed", "buildah exited with 1", {
  details: { argv0: "buildah", code: 1 },
});

test.each([
  [
    'Error: building at STEP "COPY --from=build /app/dist /srv/": checking on sources under "/store/overlay/a915/merged": copier: stat: "/app/dist": no such file or directory',
    "/app/dist is not there to be copied: nothing wrote it.",
  ],
  [
    'kontor: The build wrote no directory dist. Set output_directory.\nError: building at STEP "RUN test": while running runtime: exit status 1',
    "The build wrote no directory dist. Set output_directory.",
  ],
  [
    'Error: building at STEP "RUN false": while running runtime: exit status 1',
    "RUN false failed: exit status 1",
  ],
])("a build that ends with %j fails with %j", (last, message) => {
  expect(explain(failed, last)).toMatchObject({ kind: "image_failed", message });
});
