import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, readFile, rm, stat, symlink, mkdir, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { beforeAll, expect, onTestFinished, test } from "vitest";
import type { ImageRecipe } from "../driver.ts";
import { Images } from "./images.ts";
import { runInside } from "./steps.ts";
import { testImage } from "./testing/image.ts";
import { certificates } from "./trust.ts";

/** The built-in image debian-12, made here unless an earlier run has made it. */
let image: Awaited<ReturnType<typeof testImage>>;

beforeAll(async () => {
  image = await testImage();
});

async function temporaryImages(recipes: ImageRecipe[] = []): Promise<{ images: Images; directory: string }> {
  const directory = await mkdtemp(path.join(os.tmpdir(), "kontor-images-"));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const recipesDirectory = path.join(directory, "recipes");
  await mkdir(recipesDirectory);
  for (const recipe of recipes)
    await writeFile(path.join(recipesDirectory, `${recipe.name}.json`), JSON.stringify(recipe));
  return { images: new Images({ directory: path.join(directory, "images"), recipesDirectory }), directory };
}

/** Returns a recipe of one npm package without dependencies and programs, which is made in a second. */
function small(name: string, more: Partial<ImageRecipe> = {}): ImageRecipe {
  const step = {
    kind: "npm",
    package: "node-gyp-build",
    version: "4.8.4",
    into: "/opt/small",
    paths: [],
  } as const;
  return {
    name,
    promise: {},
    env: { A: "b" },
    probes: {},
    ways: [{ substitute: false, steps: [{ ...step, paths: [] }] }],
    ...more,
  };
}

test("makes the built-in image with its promised contents, and records the versions", async () => {
  expect(image.image).toMatchObject({ name: "debian-12", substituted: false });
  expect(image.image.contents["debian"]).toMatch(/^12\./);
  expect(image.image.contents["git"]).toMatch(/^\d+\.\d+/);
  expect(image.image.sizeBytes).toBeGreaterThan(50e6);
  expect((await image.images.list()).map(({ id }) => id)).toContain(image.image.id);
});

test("makes an image with the directories that a machine needs, and without files of the host", async () => {
  const at = (name: string) => path.join(image.rootfs, name);
  expect((await stat(at(".kontor/guest"))).mode & 0o777).toBe(0o755);
  expect((await stat(at("tmp"))).mode & 0o7777).toBe(0o1777);
  for (const directory of [".kontor/run", "workspace", "persist"])
    expect((await stat(at(directory))).isDirectory()).toBe(true);
  expect(await readFile(at("etc/resolv.conf"), "utf8")).toBe("");
  expect(await readFile(at("etc/hostname"), "utf8")).toBe("localhost\n");
  await expect(stat(at("etc/machine-id"))).rejects.toThrow("ENOENT");
  expect((await readdir(at("etc/ssh"))).filter((name) => name.startsWith("ssh_host"))).toEqual([]);
  const apt = await Promise.all(
    (await readdir(at("etc/apt/apt.conf.d"))).map((name) =>
      readFile(at(`etc/apt/apt.conf.d/${name}`), "utf8"),
    ),
  );
  expect(apt.join("")).not.toMatch(/proxy/i);
  expect(await readdir(at("var/lib/apt/lists"))).toEqual([]);
  const sources = await readFile(at("etc/apt/sources.list"), "utf8");
  expect(sources).toMatch(/ bookworm main\n.* bookworm-updates main\n/);
});

test("adds every certificate of the host to an image", async () => {
  const bundle = "/etc/ssl/certs/ca-certificates.crt";
  const inside = new Set(certificates(await readFile(path.join(image.rootfs, bundle), "utf8")));
  const missing = certificates(await readFile(bundle, "utf8")).filter(
    (certificate) => !inside.has(certificate),
  );
  expect(missing).toEqual([]);
  expect(image.image.env["NODE_EXTRA_CA_CERTS"]).toBe(bundle);
});

test("runs a command of a recipe in the image without network and without the host's processes", async () => {
  expect(await runInside(image.rootfs, ["cat", "/etc/debian_version"])).toMatch(/^12/);
  const interfaces = await runInside(image.rootfs, ["cat", "/proc/net/dev"]);
  expect(
    interfaces
      .trim()
      .split("\n")
      .slice(2)
      .map((line) => line.split(":")[0]?.trim()),
  ).toEqual(["lo"]);
  expect(
    (await runInside(image.rootfs, ["bash", "-c", "ls -d /proc/[0-9]*"])).trim().split("\n").length,
  ).toBeLessThan(4);
});

test("shares one build and its progress between two callers, and finds the image in a second process", async () => {
  const { images, directory } = await temporaryImages();
  const seen: number[][] = [[], []];
  const [first, second] = await Promise.all(
    seen.map((fractions) => images.ensure(small("small"), ({ fraction }) => fractions.push(fraction))),
  );
  expect(second).toEqual(first);
  for (const fractions of seen) {
    expect(fractions).toEqual(fractions.toSorted((a, b) => a - b));
    expect(fractions.at(-1)).toBe(1);
  }
  const again = new Images({
    directory: path.join(directory, "images"),
    recipesDirectory: path.join(directory, "recipes"),
  });
  expect(await again.list()).toEqual([first]);
  expect(await again.ensure(small("small"))).toEqual(first);
  expect(await readdir(path.join(directory, "images"))).toEqual([first?.id]);
});

test("builds an image on another image, which is made first, with linked files and its service", async () => {
  const service = { speaks: "echo/1", argv: ["echo"], port: 7 };
  const base = small("base", { service });
  const links = { "/usr/bin/tool": "../../opt/tool/index.js" };
  const step = {
    kind: "npm",
    package: "node-gyp-build",
    version: "4.8.4",
    into: "/opt/tool",
    paths: ["index.js"],
    links,
  } as const;
  const { images } = await temporaryImages([base]);
  const above = await images.ensure(
    small("above", {
      ways: [
        {
          substitute: false,
          steps: [
            { kind: "image", name: "base" },
            { ...step, paths: ["index.js"] },
          ],
        },
      ],
    }),
  );
  expect(above.service).toEqual(service);
  const rootfs = images.rootfsPath(above.id);
  expect(await readdir(path.join(rootfs, "opt/tool"))).toEqual(["index.js"]);
  expect(await readdir(path.join(rootfs, "opt/small"))).toContain("package.json");
  expect((await readFile(path.join(rootfs, "usr/bin/tool"), "utf8")).length).toBeGreaterThan(10);
  expect((await images.list()).map(({ name }) => name)).toEqual(["above", "base"]);
});

test("uses the next way after the first one fails, and records a substitute", async () => {
  const { images } = await temporaryImages();
  const [works] = small("small").ways;
  const fails = {
    substitute: false,
    steps: [{ kind: "npm" as const, package: "node-gyp-build", version: "0.0.9999", into: "/", paths: [] }],
  };
  const made = await images.ensure(
    small("small", { ways: [fails, { substitute: true, steps: works?.steps ?? [] }] }),
  );
  expect(made.substituted).toBe(true);
});

test("leaves no bytes after a failed build, and reports the step, its last lines and a cure", async () => {
  const { images, directory } = await temporaryImages();
  const steps = [
    ...(small("bad").ways[0]?.steps ?? []),
    { kind: "run" as const, argv: ["/no/such/program"] },
  ];
  const failure = images.ensure(small("bad", { ways: [{ substitute: false, steps }] }));
  await expect(failure).rejects.toMatchObject({ kind: "image_failed" });
  await expect(failure).rejects.toThrow(
    /image bad could not be made: step 2 \(running \/no\/such\/program\) failed: .*No such file/s,
  );
  expect(await readdir(path.join(directory, "images"))).toEqual([]);
});

test("deletes leftovers of a dead build, and keeps the directory of a live build", async () => {
  const { images, directory } = await temporaryImages();
  const root = path.join(directory, "images");
  await mkdir(path.join(root, ".building-4194305-1/x/rootfs"), { recursive: true });
  await mkdir(path.join(root, `.building-${process.ppid}-1`));
  await mkdir(path.join(root, "no-record/rootfs"), { recursive: true });
  expect(await images.list()).toEqual([]);
  expect(await readdir(root)).toEqual([`.building-${process.ppid}-1`, "no-record"]);
});

test("removes an image, also twice, and rejects a path as id", async () => {
  const { images, directory } = await temporaryImages();
  const { id } = await images.ensure(small("small"));
  const outside = path.join(directory, "outside");
  await writeFile(outside, "kept");
  await symlink(outside, path.join(images.rootfsPath(id), "link"));
  await images.remove(id);
  await images.remove(id);
  await expect(images.remove("../outside")).rejects.toMatchObject({ kind: "not_found" });
  expect(await images.list()).toEqual([]);
  expect(await readFile(outside, "utf8")).toBe("kept");
});

test("leaves no mount, process or bytes of a build whose process was killed", async () => {
  const recipe: ImageRecipe = {
    ...small("cut-off"),
    ways: [
      {
        substitute: false,
        steps: [{ kind: "debian", suite: "bookworm", components: ["main"], packages: [] }],
      },
    ],
  };
  const { images, directory } = await temporaryImages([recipe]);
  const program = `
    const { Images } = await import(${JSON.stringify(new URL("./images.ts", import.meta.url).href)});
    const images = new Images({ directory: ${JSON.stringify(path.join(directory, "images"))} });
    await images.ensure(${JSON.stringify(recipe)}, ({ step }) => process.stdout.write(step + "\\n"));
  `;
  const builder = spawn(process.execPath, ["--input-type=module", "--eval", program], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let said = "";
  for await (const text of builder.stdout) {
    said += String(text);
    // From here on, mmdebstrap has /proc, /sys and /dev mounted in the folder.
    if (said.includes("installing the base system")) break;
  }
  expect(said).toContain("installing the base system");
  builder.kill("SIGKILL");
  await once(builder, "exit");
  await expect.poll(() => processesNaming(directory), { timeout: 10_000 }).toEqual([]);
  expect(await readFile("/proc/self/mountinfo", "utf8")).not.toContain(directory);
  expect(await images.list()).toEqual([]);
  expect(await readdir(path.join(directory, "images"))).toEqual([]);
});

/** Returns the command lines of living processes that contain the directory. */
async function processesNaming(directory: string): Promise<string[]> {
  const numbers = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const lines = await Promise.all(
    numbers.map((pid) => readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")),
  );
  return lines.filter((line) => line.includes(directory));
}
