import type { ColumnType, Generated } from "kysely";
import type { ProcessDefaults } from "#builds/tables.ts";

/**
 * Columns as they are stored; migrations/0009_templates.sql, 0082_substituted_versions.sql,
 * 0083_templates_on_own_templates.sql and 0097_templates_of_images.sql explain them.
 */
export interface TemplatesTable {
  id: string;
  workspace_id: string;
  name: string;
  base_template: string;
  base_template_id: string | null;
  depth: Generated<number>;
  recipe: ColumnType<string[], string, never>;
  dockerfile: ColumnType<string | null, string | null, never>;
  image: ColumnType<string | null, string | null, never>;
  process_defaults: ColumnType<ProcessDefaults | null, string | null, string | null>;
  network: "restricted" | "open";
  description: string | null;
  wanted_tags: string[];
  start_command: string | null;
  start_command_id: string | null;
  status: "building" | "ready" | "failed";
  error_message: string | null;
  size_bytes: number | null;
  contents: ColumnType<Record<string, string>, string | undefined, string>;
  substituted: Generated<boolean>;
  /** Version of the program in the image, if it differs from the version in the base's name. */
  substitute: ColumnType<string | null, undefined, string | null>;
  created_at: Date;
  built_at: Date | null;
}

interface TemplateTagsTable {
  workspace_id: string;
  name: string;
  tag: string;
  template_id: string;
}

export interface TemplateTables {
  templates: TemplatesTable;
  template_tags: TemplateTagsTable;
}
