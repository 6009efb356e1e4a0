import { conformance } from "../conformance.ts";
import { makeDriver as make } from "../linux/testing/driver.ts";

const native = async () => ({ ...(await make()), isolation: "native" as const });

conformance("native", native, { isolation: true, checkpoints: false, processesContinue: false });
