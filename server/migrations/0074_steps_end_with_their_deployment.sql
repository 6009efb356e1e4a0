-- Steps of deployments that ended before this rule stayed pending or running for ever.

update deployments
set steps = (
  select jsonb_agg(
    case step ->> 'status'
      when 'pending' then step || '{"status": "skipped"}'
      when 'running' then step || jsonb_build_object(
        'status', case when status = 'failed' then 'failed' else 'skipped' end,
        'finished_at', to_char(finished_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
      else step
    end order by place)
  from jsonb_array_elements(steps) with ordinality as each (step, place)
)
where status in ('live', 'superseded', 'failed', 'cancelled')
  and (steps @? '$[*] ? (@.status == "pending" || @.status == "running")');
