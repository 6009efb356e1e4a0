import { z } from "zod";
import { accountSuspended, planLimit, workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { tooManyVariables } from "../environments/errors.ts";
import { VariablesResponse } from "../environments/schema.ts";
import { invalidField, nameTaken } from "../projects/errors.ts";
import { checkName } from "../projects/names.ts";
import { NameCheck } from "../projects/schema.ts";
import { createFunction } from "./create.ts";
import { deleteFunction } from "./delete.ts";
import { deployFunction } from "./deploy.ts";
import { deployInProgress, functionDeployed, functionNotFound, noApiKey } from "./errors.ts";
import { get, list, readVariables } from "./functions.ts";
import type { FunctionParts } from "./parts.ts";
import {
  bodyLimit,
  DeployQuery,
  FunctionCreate,
  FunctionListResponse,
  FunctionParams,
  FunctionResponse,
  FunctionUpdate,
  FunctionWithKey,
  readOnlyFields,
} from "./schema.ts";
import { rotateKey, updateFunction } from "./update.ts";

const common = { api: "platform", tag: "Functions" } as const;
const path = "/api/v1/functions/{function_id}";

export const functionRoutes = (app: App, parts: FunctionParts): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/functions",
    operationId: "listFunctions",
    summary: "Functions, newest first",
    scope: "platform:read",
    query: z.object({
      skip: z.int().min(0).default(0),
      limit: z.int().min(1).max(100).default(20),
      workspace: z
        .string()
        .max(64)
        .optional()
        .describe("`personal` or a team id; all that the caller reaches where absent."),
    }),
    responses: { 200: FunctionListResponse },
    errors: [workspaceNotFound],
    handler: ({ actor, query }) => list(app, parts, actor, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/functions",
    operationId: "createFunction",
    summary: "Create a function",
    description:
      "It answers nothing before its first deploy. With `auth_mode: api_key` the answer holds its key, this once.",
    scope: "platform:write",
    body: FunctionCreate,
    bodyLimit,
    responses: { 201: FunctionWithKey },
    errors: [nameTaken, invalidField, planLimit, accountSuspended, workspaceNotFound],
    idempotent: true,
    secretFields: ["api_key"],
    handler: ({ actor, body }) => createFunction(app, parts, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/functions/check-name/{name}",
    operationId: "checkFunctionName",
    summary: "Whether a name is free for a function",
    scope: "platform:read",
    params: z.object({ name: z.string().max(100) }),
    responses: { 200: NameCheck },
    handler: ({ params }) => checkName(app, params.name),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "getFunction",
    summary: "A function",
    scope: "platform:read",
    params: FunctionParams,
    responses: { 200: FunctionResponse },
    errors: [functionNotFound],
    handler: ({ actor, params }) => get(app, parts, actor, params.function_id),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path,
    operationId: "updateFunction",
    summary: "Change a function",
    description:
      "Code and dependencies apply at the next deploy, who may call it from now on, and its variables, timeouts and memory when an instance is started next.",
    scope: "platform:write",
    params: FunctionParams,
    body: FunctionUpdate,
    bodyLimit,
    readOnlyFields,
    responses: { 200: FunctionWithKey },
    errors: [
      functionNotFound,
      functionDeployed,
      nameTaken,
      invalidField,
      tooManyVariables,
      planLimit,
      accountSuspended,
      workspaceNotFound,
    ],
    handler: ({ actor, params, body }) => updateFunction(app, parts, actor, params.function_id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path,
    operationId: "deleteFunction",
    summary: "Delete a function and all that it has",
    description:
      "Nobody sees it from now on, and its name is free. Its instances and images are gone within seconds.",
    scope: "platform:write",
    params: FunctionParams,
    responses: { 204: null },
    errors: [functionNotFound],
    handler: ({ actor, params }) => deleteFunction(app, actor, params.function_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/deploy`,
    operationId: "deployFunction",
    summary: "Build what is stored, and make it live",
    description:
      "Dependencies are installed, the handler is loaded once, and then it answers at the function's address. What was live before answers until then, and goes on where the deploy fails: `error` says why. Answers at its end, or after two minutes with `status: building`.",
    scope: "platform:write",
    params: FunctionParams,
    query: DeployQuery,
    responses: { 200: FunctionResponse },
    errors: [functionNotFound, deployInProgress, accountSuspended],
    handler: ({ actor, params, query }) => deployFunction(app, parts, actor, params.function_id, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/env-vars`,
    operationId: "getFunctionVariables",
    summary: "The function's variables, decrypted",
    scope: "platform:read",
    params: FunctionParams,
    responses: { 200: VariablesResponse },
    errors: [functionNotFound],
    handler: ({ actor, params }) => readVariables(app, actor, params.function_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/rotate-api-key`,
    operationId: "rotateFunctionKey",
    summary: "A new key in place of the one there is",
    description: "The earlier key opens nothing from now on. The answer holds the new one, this once.",
    scope: "platform:write",
    params: FunctionParams,
    responses: { 200: FunctionWithKey },
    errors: [functionNotFound, noApiKey, accountSuspended],
    handler: ({ actor, params }) => rotateKey(app, parts, actor, params.function_id),
  }),
];
