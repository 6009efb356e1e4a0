/**
 * Images for the tests' servers. The images are made once per host in the cache of all runtime tests. Hard links in a
 * server's data directory make them the server's own images. The tests never write to an image.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { testImage } from "@kontor/runtime/rootfs/testing/image.ts";

export async function linkImages(dataDir: string, names: readonly string[]): Promise<void> {
  const images = join(dataDir, "machines/images");
  await mkdir(images, { recursive: true, mode: 0o700 });
  for (const name of names) await linkImage(images, name);
}

async function linkImage(images: string, name: string): Promise<void> {
  const { image, rootfs } = await testImage(name);
  // Hard links from another file system to the cache fail; a copy is slower and works as well.
  const link = await run(["cp", "-al", join(rootfs, ".."), join(images, image.id)], { okCodes: [0, 1] });
  if (link.code !== 0) {
    await run(["rm", "-rf", join(images, image.id)]);
    await run(["cp", "-a", join(rootfs, ".."), join(images, image.id)]);
  }
}
