-- +goose Up
-- Tokens that may have been dispatchers' stay so: now they have to say it.
UPDATE tokens SET doc = jsonb_set(doc::jsonb, '{toolsets}', doc::jsonb -> 'toolsets' || '["dispatch"]')::text
  WHERE doc::jsonb -> 'toolsets' @> '["jobs","files"]';
UPDATE tokens SET doc = (doc::jsonb || '{"toolsets":["jobs","exec","vm","files","admin","dispatch"]}')::text
  WHERE doc::jsonb ->> 'role' = 'run' AND NOT doc::jsonb ? 'toolsets' AND NOT doc::jsonb ? 'login';
