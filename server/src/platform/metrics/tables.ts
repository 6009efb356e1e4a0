/** Columns of the table; migrations/0016_request_minutes_and_domains.sql describes them. */
export interface RequestMinutesTable {
  environment_id: string;
  minute: Date;
  writer: string;
  requests: number;
  errors: number;
  latencies: Buffer;
}

export interface MetricTables {
  request_minutes: RequestMinutesTable;
}
