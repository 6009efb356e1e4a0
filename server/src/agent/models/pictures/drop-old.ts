/**
 * Removes the oldest tool pictures from the conversation when a request has too many. Half of the pictures are removed
 * at a time, so that the next requests begin alike and the provider's prompt cache stays valid.
 */
import { PictureBudget, type PictureLimit, withoutPictures } from "../../tools/pictures.ts";
import { mapContent, type Message, picturesIn } from "../messages.ts";

/**
 * Maximum of pictures in one request. If a request has more than twenty pictures, Anthropic allows only smaller
 * pictures.
 */
const promptPictures: PictureLimit = { count: 20, bytes: 4 * 1024 ** 2 };

/**
 * Removes old pictures from these messages, and updates their byte counts in place. The pictures of the last results
 * always stay.
 */
export function dropOldPictures(said: { message: unknown; bytes: number }[]): void {
  const places = said.flatMap(({ message }, place) =>
    picturesIn(message as Message).length > 0 ? [place] : [],
  );
  const whole = new PictureBudget(promptPictures);
  const takeAll = (budget: PictureBudget, place: number) =>
    picturesIn(said[place]!.message as Message).every((picture) => budget.take(picture));
  if (places.every((place) => takeAll(whole, place))) return;
  const half = new PictureBudget({ count: promptPictures.count / 2, bytes: promptPictures.bytes / 2 });
  const newest = places.toReversed();
  const kept = newest.findIndex((place, index) => !takeAll(half, place) && index > 0);
  for (const place of kept === -1 ? [] : newest.slice(kept)) {
    const { message } = said[place]!;
    const changed = mapContent(message as Message, (content) =>
      withoutPictures(content, "left out: too old"),
    );
    said[place] = { ...said[place]!, message: changed, bytes: Buffer.byteLength(JSON.stringify(changed)) };
  }
}
