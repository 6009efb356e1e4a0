import { expect, test } from "vitest";
import { toolMessage } from "../models/messages.ts";
import { toTracedMessage } from "./traced-message.ts";

test("describes tools' pictures in a trace without the pictures' bytes", () => {
  const data = Buffer.alloc(300).toString("base64");
  const picture = { type: "file" as const, mediaType: "image/png", data: { type: "data" as const, data } };
  const content = [{ type: "text" as const, text: "Seen:" }, picture];
  const said = toTracedMessage(toolMessage([{ id: "call_1", tool: "look", isOk: true, text: "", content }]));
  expect(said).toEqual({
    role: "tool",
    parts: [
      {
        type: "tool_call_response",
        id: "call_1",
        response: { type: "text", value: "Seen:\n\n[image of type image/png, 300 bytes, left out]" },
      },
    ],
  });
});
