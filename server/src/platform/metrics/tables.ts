/** Columns as they are stored; see migrations/0016_request_minutes_and_domains.sql for what they mean. */
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
