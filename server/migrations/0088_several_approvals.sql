-- Several approvals of one run are pending at a time, and a person may change a call's arguments with the approval.

drop index agent_approvals_one_of_run;

alter table agent_approvals
  -- JSON Schema of the arguments while the approval is pending. Null afterwards, and for older approvals.
  add column parameters json,
  -- Arguments that a person approved in place of `arguments`. Null if the person changed none.
  add column approved_arguments json;
