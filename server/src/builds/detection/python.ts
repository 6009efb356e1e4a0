/**
 * Detects a Python project: package manager, web framework, app object and Python version. Every manager installs into
 * a virtual environment. The image contains only that environment and the sources.
 */
import { posix } from "node:path";
import type { Candidate, BuildSpec, DetectionSettings } from "./candidate.ts";
import { type PythonFramework, pythonFrameworks, systemNeeds } from "./frameworks.ts";
import { type Fields, fields, type Inspection, strings, text } from "./inspection.ts";
import { portIn } from "./node.ts";
import { fromRegistry, versionFiles } from "./version-files.ts";

/** Minor versions of Python 3 that this host makes an image for. Default: 13. */
const minors = [11, 12, 13];
const defaultMinor = 13;
/**
 * Highest minor version that is accepted. Newer versions than `minors` come from a registry; the bound keeps a typing
 * error such as 3.130 from becoming an image name.
 */
const newestMinor = 30;
/** Minor versions that Debian does not package, and those that replace them on a host without a registry. */
const substituted = new Map([[12, 13]]);

const manifests = ["uv.lock", "poetry.lock", "Pipfile", "requirements.txt", "pyproject.toml", "setup.py"];

const venv = "/opt/venv";
/** Directory of uv, Poetry and Pipenv, apart from the app's packages. */
const tools = "/opt/tools";

interface PythonApp {
  view: Inspection;
  directory: string;
  pyproject: Fields;
  pipfile: Fields;
  /** Requirement as written, and its file, by the normalised name of the package. */
  dependencies: Map<string, { requirement: string; file: string }>;
}

interface Manager {
  name: "uv" | "poetry" | "pipenv" | "pip";
  install: string | null;
  /** Files that the install reads; null means all files. */
  manifests: readonly string[] | null;
  caches: readonly string[];
  why: string;
}

async function isPython(view: Inspection, directory: string): Promise<boolean> {
  const files = [...manifests, "manage.py"].map((name) => posix.join(directory, name));
  return (await view.first(files)) !== undefined;
}

export async function findPython(
  view: Inspection,
  directory: string,
  { framework: wanted }: DetectionSettings = {},
): Promise<Candidate | undefined> {
  if (!(await isPython(view, directory))) return undefined;
  const app = await read(view, directory);
  const hasManage = await view.has(posix.join(directory, "manage.py"));
  const framework =
    pythonFrameworks.find((each) => each.id === wanted) ??
    pythonFrameworks.find((each) => app.dependencies.has(each.package)) ??
    pythonFrameworks.find((each) => each.id === "django" && hasManage);
  if (framework && wanted !== "python")
    return {
      framework: framework.id,
      name: framework.name,
      rank: "python-web",
      resolveBuild: (start) => resolveBuild(app, framework, start),
    };
  const hasPages = await view.has(posix.join(directory, "mkdocs.yml"));
  const missing = hasPages
    ? "mkdocs.yml: set build_command to mkdocs build and output_directory to site"
    : "no Python program with a usual name was found: set start_command, or write a Procfile";
  return {
    ...((await programOf(app)) === undefined ? { missing } : {}),
    framework: "python",
    name: "Python",
    rank: "python-program",
    resolveBuild: (start) => resolveBuild(app, undefined, start),
  };
}

async function resolveBuild(
  app: PythonApp,
  framework: PythonFramework | undefined,
  given: string | undefined,
): Promise<BuildSpec> {
  const { view } = app;
  const seen = framework && app.dependencies.get(framework.package);
  if (seen) view.because(`${seen.file} names ${seen.requirement}`);
  else
    view.because(
      framework ? "manage.py exists, so this is Django" : "the Python project has no known web framework",
    );
  const others = pythonFrameworks.filter((each) => each !== framework && app.dependencies.has(each.package));
  if (framework && others.length > 0)
    view.warn(
      `${others.map((each) => each.name).join(" and ")} is a dependency too: ${framework.name} is used`,
    );

  const minor = await minorOf(app);
  const manager = await managerOf(app);
  view.because(manager.why);
  const { start, add } = given ? { start: given, add: null } : await startOf(app, framework);
  const build = framework?.id === "django" ? await collectStatic(app) : null;
  const needs = systemNeeds.filter((need) => app.dependencies.has(need.package));
  for (const need of needs) view.because(`${need.package} needs ${need.run.join(", ")} of Debian`);

  const image = `python:3.${minor}-slim`;
  const ownTool = manager.name !== "pip";
  const path = { PATH: `${venv}/bin:${ownTool ? `${tools}/bin:` : ""}$PATH` };
  const port = framework === undefined ? ((await programPort(app, start)) ?? 8000) : 8000;
  return {
    runtime: "python",
    runtimeVersion: `3.${minor}`,
    packageManager: manager.name,
    installCommand: manager.install,
    buildCommand: build,
    startCommand: start,
    outputDirectory: null,
    port,
    plan: {
      context: app.directory,
      directory: ".",
      manager: ownTool
        ? {
            name: manager.name,
            setUp: `python3 -m venv ${tools} && ${tools}/bin/pip install ${manager.name}`,
          }
        : null,
      build: {
        image,
        packages: needs.flatMap((need) => need.build),
        env: {
          ...path,
          VIRTUAL_ENV: venv,
          ...(manager.name === "uv" ? { UV_PROJECT_ENVIRONMENT: venv, UV_LINK_MODE: "copy" } : {}),
        },
        setUp: [`python3 -m venv ${venv}`],
        manifests: manager.manifests,
        caches: manager.caches,
        install: manager.install,
        add: add && `${manager.name === "uv" ? "uv pip" : "pip"} install ${add}`,
        buildEnv: {},
        buildCaches: [],
        build,
        prune: null,
      },
      run: {
        kind: "server",
        image,
        packages: needs.flatMap((need) => need.run),
        env: { PATH: `${venv}/bin:$PATH`, PYTHONUNBUFFERED: "1" },
        ships: [
          [venv, venv],
          [".", "."],
        ],
        start,
      },
    },
  };
}

async function read(view: Inspection, directory: string): Promise<PythonApp> {
  const at = (name: string): string => posix.join(directory, name);
  const pyproject = await view.toml(at("pyproject.toml"));
  const pipfile = await view.toml(at("Pipfile"));
  const listed = fields(pyproject["project"])["dependencies"];
  const requirements: [file: string, lines: readonly string[]][] = [
    ["requirements.txt", ((await view.text(at("requirements.txt"))) ?? "").split(/\r?\n/)],
    [
      "pyproject.toml",
      [
        ...(Array.isArray(listed) ? listed.filter((each) => typeof each === "string") : []),
        ...poetryNames(pyproject),
      ],
    ],
    ["Pipfile", Object.keys(fields(pipfile["packages"]))],
  ];
  const dependencies: PythonApp["dependencies"] = new Map();
  for (const [file, lines] of requirements)
    for (const long of lines) {
      const line = long.slice(0, 500);
      const name = /^\s*([A-Za-z0-9][\w.-]*)/.exec(line)?.[1];
      if (name === undefined) continue;
      // PEP 503: one name for Flask, flask and FLASK.
      const normal = name.toLowerCase().replaceAll(/[-_.]+/g, "-");
      const requirement = line.replace(/\s*[;#].*$/, "").trim();
      if (!dependencies.has(normal)) dependencies.set(normal, { requirement, file });
    }
  return { view, directory, pyproject, pipfile, dependencies };
}

/** Returns the names in Poetry's own table: a name with a version, or with a table of version and extras. */
function poetryNames(pyproject: Fields): string[] {
  const poetry = fields(fields(fields(pyproject["tool"])["poetry"])["dependencies"]);
  return Object.entries(poetry).map(([name, value]) => {
    const extras = fields(value)["extras"];
    return Array.isArray(extras)
      ? `${name}[${extras.filter((each) => typeof each === "string").join(",")}]`
      : name;
  });
}

async function managerOf(app: PythonApp): Promise<Manager> {
  const { view, directory, pyproject } = app;
  const has = (name: string): Promise<boolean> => view.has(posix.join(directory, name));
  const pip = "/root/.cache/pip";
  const isPackage = pyproject["build-system"] !== undefined;

  if (await has("uv.lock"))
    return {
      name: "uv",
      install: `uv sync --frozen --no-dev${isPackage ? "" : " --no-install-project"}`,
      manifests: isPackage ? null : ["pyproject.toml", "uv.lock"],
      caches: [pip, "/root/.cache/uv"],
      why: "uv.lock belongs to uv",
    };
  const poetryLock = await has("poetry.lock");
  if (poetryLock || fields(pyproject["tool"])["poetry"] !== undefined) {
    if (!poetryLock)
      view.warn("there is no poetry.lock: two builds of one commit may install different versions");
    const isSource = await view.has(posix.join(directory, "src"), "directory");
    return {
      name: "poetry",
      install: `poetry install --only main --no-interaction${isSource ? "" : " --no-root"}`,
      manifests: isSource ? null : ["pyproject.toml", ...(poetryLock ? ["poetry.lock"] : [])],
      caches: [pip, "/root/.cache/pypoetry"],
      why: poetryLock ? "poetry.lock belongs to Poetry" : "pyproject.toml has a table tool.poetry",
    };
  }
  if (await has("Pipfile")) {
    const locked = await has("Pipfile.lock");
    if (!locked)
      view.warn("there is no Pipfile.lock: two builds of one commit may install different versions");
    return {
      name: "pipenv",
      install: locked ? "pipenv sync" : "pipenv install --skip-lock",
      manifests: ["Pipfile", ...(locked ? ["Pipfile.lock"] : [])],
      caches: [pip, "/root/.cache/pipenv"],
      why: "Pipfile belongs to Pipenv",
    };
  }
  if (await has("requirements.txt")) {
    const lines = (await view.text(posix.join(directory, "requirements.txt"))) ?? "";
    // Lines that refer to other files, or to the project itself.
    const refers = /^[ \t]*(?:-[rce]|--requirement|--constraint|--editable|\.|file:)/m.test(lines);
    if (!/==/.test(lines) && app.dependencies.size > 0)
      view.warn("requirements.txt pins no versions: two builds of one commit may install different ones");
    return {
      name: "pip",
      install: "pip install -r requirements.txt",
      manifests: refers ? null : ["requirements.txt"],
      caches: [pip],
      why: "requirements.txt lists the dependencies",
    };
  }
  if (fields(pyproject["project"])["dependencies"] !== undefined && !isPackage)
    return {
      name: "uv",
      // The lock contains the index's address, which may contain credentials, so it is deleted.
      install: "uv sync --no-dev --no-install-project && rm -f uv.lock",
      manifests: ["pyproject.toml"],
      caches: [pip, "/root/.cache/uv"],
      why: "pyproject.toml lists the dependencies",
    };
  const installs = isPackage || (await has("setup.py"));
  return {
    name: "pip",
    install: installs ? "pip install ." : null,
    manifests: null,
    caches: [pip],
    why: installs ? "the project is a package of its own" : "nothing lists dependencies",
  };
}

async function startOf(
  app: PythonApp,
  framework: PythonFramework | undefined,
): Promise<{ start: string; add: string | null }> {
  const { view, dependencies } = app;
  if (framework === undefined) {
    const file = await programOf(app);
    if (file && dependencies.has("streamlit")) {
      view.because(`requirements name streamlit, which runs ${file}`);
      return {
        start: `streamlit run ${file} --server.port $PORT --server.address 0.0.0.0 --server.headless true`,
        add: null,
      };
    }
    if (file) view.because(`${file} is the program`);
    else view.warn("no start was detected: set start_command, or write a Procfile");
    return { start: `python ${file ?? "main.py"}`, add: null };
  }
  const found = framework.appIn ? await appOf(app, framework.appIn) : await wsgiOf(app);
  if (found) view.because(`${found.file} holds the app`);
  else view.warn(`no file with a usual name contains an app of ${framework.name}: set start_command`);
  const target = found?.target ?? (framework.appIn ? "main:app" : "config.wsgi");
  // Gunicorn calls an app factory by its name; uvicorn needs an option to call a factory.
  const isFactory = target.endsWith("()");
  const start = framework.start
    .replace("uvicorn ", isFactory ? "uvicorn --factory " : "uvicorn ")
    .replace(
      "{app}",
      isFactory && framework.server === "uvicorn" ? target.slice(0, -2) : isFactory ? `'${target}'` : target,
    );
  const brought = [...dependencies.values()].some(({ requirement }) => framework.serverIn?.test(requirement));
  if (brought || dependencies.has(framework.server)) return { start, add: null };
  view.warn(
    `${framework.server} serves the app and is no dependency of it: the recipe adds its latest version`,
  );
  return { start, add: framework.server };
}

/** Returns the app's variable or factory function, from the first module that has one. */
async function appOf(app: PythonApp, pattern: RegExp): Promise<{ file: string; target: string } | undefined> {
  for (const file of await modules(app)) {
    const source = (await app.view.text(posix.join(app.directory, file))) ?? "";
    const variable = pattern.exec(source)?.[1];
    const factory = /^def (create_app|make_app|get_app)\(/m.exec(source)?.[1];
    const module = file.replace(/(?:\/__init__)?\.py$/, "").replaceAll("/", ".");
    if (variable) return { file, target: `${module}:${variable}` };
    if (factory) return { file, target: `${module}:${factory}()` };
  }
  return undefined;
}

/** Returns Django's WSGI module, which lies beside the settings that manage.py names. */
async function wsgiOf(app: PythonApp): Promise<{ file: string; target: string } | undefined> {
  const settings = await settingsOf(app);
  const near = settings?.split(".")[0];
  const packages = await packagesOf(app);
  const first = near === undefined ? packages : [near, ...packages];
  const file = await app.view.first(first.map((name) => posix.join(app.directory, name, "wsgi.py")));
  const package_ = file && posix.relative(app.directory, posix.dirname(file));
  return package_ ? { file: `${package_}/wsgi.py`, target: `${package_}.wsgi` } : undefined;
}

async function settingsOf(app: PythonApp): Promise<string | undefined> {
  const manage = (await app.view.text(posix.join(app.directory, "manage.py"))) ?? "";
  return /DJANGO_SETTINGS_MODULE["']\s*,\s*["'](\w+(?:\.\w+)*)["']/.exec(manage)?.[1];
}

async function collectStatic(app: PythonApp): Promise<string | null> {
  const { view, directory, dependencies } = app;
  view.warn("migrations do not run automatically: run manage.py migrate, or put it before the start");
  const settings = (await settingsOf(app))?.replaceAll(".", "/");
  if (settings === undefined) return null;
  const files = [
    `${settings}.py`,
    `${settings}/__init__.py`,
    `${settings}/base.py`,
    `${posix.dirname(settings)}/base.py`,
  ];
  for (const file of files) {
    const source = await view.text(posix.join(directory, file));
    if (source === undefined || !/^[ \t]*STATIC_ROOT[ \t]*=/m.test(source)) continue;
    view.because(`${file} sets STATIC_ROOT: static files are collected`);
    if (!dependencies.has("whitenoise"))
      view.warn("no package serves the collected static files: add whitenoise");
    return "python manage.py collectstatic --noinput";
  }
  return null;
}

/** Returns the file to run when no framework is found. */
async function programOf(app: PythonApp): Promise<string | undefined> {
  const { view, directory, dependencies } = app;
  const pages = dependencies.has("streamlit") ? ["streamlit_app.py", "Home.py"] : [];
  const page = await view.first(pages.map((name) => posix.join(directory, name)));
  if (page !== undefined) return posix.relative(directory, page);
  return (await modules(app)).find((module) => !module.endsWith("__init__.py"));
}

/** Returns the files that may contain the app, likeliest first. */
async function modules(app: PythonApp): Promise<string[]> {
  const names = [
    "main.py",
    "app.py",
    "application.py",
    "api.py",
    "server.py",
    "asgi.py",
    "wsgi.py",
    "run.py",
  ];
  const likely = ["", "app/", "src/", "api/", "backend/", "server/"];
  const directories = new Set([...likely, ...(await packagesOf(app)).map((name) => `${name}/`)]);
  const files = [...directories].flatMap((directory) =>
    [...names, ...(directory ? ["__init__.py"] : [])].map((name) => `${directory}${name}`),
  );
  const present: string[] = [];
  for (const file of files) if (await app.view.has(posix.join(app.directory, file))) present.push(file);
  return present;
}

/** Returns the directories that Python can import. */
async function packagesOf(app: PythonApp): Promise<string[]> {
  const entries = await app.view.list(app.directory);
  const names = entries.filter((entry) => entry.kind === "directory" && /^[a-z]\w*$/i.test(entry.name));
  return names.slice(0, 20).map((entry) => entry.name);
}

async function programPort(app: PythonApp, start: string): Promise<number | undefined> {
  const file = start.split(" ").find((word) => word.endsWith(".py"));
  const source = file && (await app.view.text(posix.join(app.directory, file)));
  const port = source ? portIn(source) : undefined;
  if (port !== undefined) app.view.because(`${file} listens on port ${port}`);
  return port;
}

async function minorOf(app: PythonApp): Promise<number> {
  const { view, directory, pyproject, pipfile } = app;
  const poetry = fields(fields(fields(pyproject["tool"])["poetry"])["dependencies"]);
  const files = await versionFiles(view, directory, [".python-version", "runtime.txt"], ["python"]);
  const requests: [where: string, range: string | undefined][] = [
    ...files.map(([file, version]): [string, string | undefined] => [
      file,
      version?.replace(/^(?:python|cpython)-/, ""),
    ]),
    ["pyproject.toml", text(fields(pyproject["project"])["requires-python"]) ?? text(poetry["python"])],
    ["Pipfile", strings(pipfile["requires"]).get("python_version")],
  ];
  const [where, range] = requests.find(([, said]) => said) ?? [];
  if (where === undefined || range === undefined) {
    view.because(`no file names a version of Python: 3.${defaultMinor} is used`);
    return defaultMinor;
  }
  const fit = minors.filter((minor) => allows(range, minor));
  const taken = fit.includes(defaultMinor) ? defaultMinor : fit.at(-1);
  for (let minor = minors.at(-1)! + 1; taken === undefined && minor <= newestMinor; minor += 1) {
    if (!allows(range, minor)) continue;
    view.because(`${where} requests Python ${range}: 3.${minor} is used`);
    const ours = minors.map((each) => `3.${each}`);
    view.warn(fromRegistry("Python", `python:3.${minor}-slim`, ours));
    return minor;
  }
  if (taken === undefined)
    view.warn(`${where} requests Python ${range}, which is unavailable: 3.${defaultMinor} is used`);
  else view.because(`${where} requests Python ${range}: 3.${taken} is used`);
  const instead = substituted.get(taken ?? defaultMinor);
  if (instead !== undefined)
    view.warn(
      `Python 3.${taken} comes from a registry; if this host reaches no registry, its image has Python 3.${instead}`,
    );
  return taken ?? defaultMinor;
}

/** True if a release of Python 3.`minor` is in the range, in the form of PEP 440 or of Poetry (`^`, `~`). */
function allows(range: string, minor: number): boolean {
  return range
    .slice(0, 100)
    .split(",")
    .every((clause) => {
      const [, operator = "==", major, at, patch] =
        /^\s*([~^<>=!]+)?\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?/.exec(clause) ?? [];
      if (major === undefined) return clause.trim() === "*";
      if (major !== "3")
        return operator.startsWith(">")
          ? Number(major) < 3
          : operator.startsWith("<")
            ? Number(major) > 3
            : false;
      if (at === undefined) return !operator.startsWith("<");
      const bound = Number(at);
      switch (operator) {
        case ">=":
        case "^":
          return minor >= bound;
        case ">":
          return patch === undefined ? minor > bound : minor >= bound;
        case "<":
          return minor < bound || (Number(patch ?? 0) > 0 && minor === bound);
        case "<=":
          return minor <= bound;
        case "~=":
          return patch === undefined ? minor >= bound : minor === bound;
        case "!=":
          return patch !== undefined || minor !== bound;
        default:
          return minor === bound;
      }
    });
}
