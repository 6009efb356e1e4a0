-- Results of tools that hold pictures: texts and pictures as the model gets them. `result` has the text alone. Null for a
-- result without pictures, and once the run's output expired.

alter table agent_tool_calls add column content json;
