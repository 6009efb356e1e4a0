/**
 * Operations that agents get as tools. The table omits operations that return secrets, delete permanently, or concern
 * accounts. Schema and scope come from the operation's route.
 */

export interface Verb {
  /** `operationId` of the operation's route. */
  operation: string;
  /** Description that replaces the operation's summary. */
  about?: string;
  /** Fields of the operation that the tool hides from the model. */
  without?: readonly string[];
}

const stream = ["follow", "stream"];
/** Fields that select an account. Tools omit them, because a run's token belongs to one account. */
const account = ["workspace"];

export const verbs: Readonly<Record<string, Verb>> = {
  list_projects: { operation: "listProjects" },
  get_project: { operation: "getProject" },
  create_project: {
    operation: "createProject",
    about:
      "Create a project and its production environment. With a repo_url the project deploys that repository; without one it has a repository here, and git_url accepts a push",
    without: [...account, "git_token", "registry_credential"],
  },
  update_project: {
    operation: "updateProject",
    about:
      "Change a project's settings or variables. A change applies at the next deployment and leaves " +
      "the running version as it is",
    without: [...account, "git_token", "registry_credential"],
  },
  analyze_project: { operation: "analyzeProject" },
  list_environments: { operation: "listEnvironments" },
  deploy: {
    operation: "createDeployment",
    about:
      "Deploy the newest commit of an environment's branch. Returns at once with status queued; " +
      "call get_deployment until it is live or failed",
  },
  list_deployments: { operation: "listDeployments" },
  get_deployment: { operation: "getDeployment" },
  get_deployment_logs: { operation: "readDeploymentLogs", without: stream },
  get_build_log: { operation: "readBuildLog" },
  cancel_deployment: { operation: "cancelDeployment" },
  roll_back: { operation: "rollBackDeployment", about: "Roll back to the version of an earlier deployment" },
  get_app_logs: { operation: "getProjectLogs", without: stream },
  get_app_health: { operation: "getAppHealth" },
  get_app_state: { operation: "getProjectHealth" },
  get_app_usage: { operation: "getProjectStats" },
  get_app_metrics: { operation: "getRequestMetrics" },
  put_app_to_sleep: { operation: "sleepProject" },
  wake_app: { operation: "wakeProject" },
  list_domains: { operation: "listDomains", without: account },
  list_addons: { operation: "listAddons" },
  list_backups: { operation: "listBackups" },
  create_backup: { operation: "createBackup" },
  list_functions: { operation: "listFunctions", without: account },
  get_function: { operation: "getFunction" },
  create_function: { operation: "createFunction", without: account },
  update_function: { operation: "updateFunction", without: account },
  deploy_function: { operation: "deployFunction" },
  invoke_function: { operation: "invokeFunction" },
  get_function_logs: { operation: "getFunctionLogs", without: stream },
  get_function_metrics: { operation: "getFunctionMetrics" },
  list_activity: { operation: "listActivity", without: account },

  list_sandboxes: { operation: "listSandboxes", without: ["metadata"] },
  get_sandbox: { operation: "getSandbox" },
  create_sandbox: { operation: "createSandbox" },
  exec_in_sandbox: { operation: "execCommand", without: [...stream, "stdin"] },
  run_code_in_sandbox: { operation: "runCode", without: stream },
  keep_sandbox_alive: { operation: "keepSandboxAlive" },
  pause_sandbox: { operation: "pauseSandbox" },
  resume_sandbox: { operation: "resumeSandbox" },
  terminate_sandbox: { operation: "terminateSandbox" },
  get_sandbox_address: { operation: "getSandboxHost" },
  list_templates: { operation: "listTemplates" },
};
