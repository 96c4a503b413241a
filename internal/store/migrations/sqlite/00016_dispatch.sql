-- +goose Up
-- Tokens that may have been dispatchers' stay so: now they have to say it.
UPDATE tokens SET doc = json_insert(doc, '$.toolsets[#]', 'dispatch')
  WHERE EXISTS (SELECT 1 FROM json_each(doc, '$.toolsets') WHERE value = 'jobs') AND EXISTS (SELECT 1 FROM json_each(doc, '$.toolsets') WHERE value = 'files');
UPDATE tokens SET doc = json_set(doc, '$.toolsets', json('["jobs","exec","vm","files","admin","dispatch"]'))
  WHERE json_extract(doc, '$.role') = 'run' AND json_type(doc, '$.toolsets') IS NULL AND json_type(doc, '$.login') IS NULL;
