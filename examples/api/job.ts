// Runs a job by the API and prints its output: LINUS_URL and LINUS_TOKEN say where.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

const linus = createClient<paths>({
  baseUrl: process.env.LINUS_URL,
  headers: { Authorization: `Bearer ${process.env.LINUS_TOKEN}` },
});

function ok<T>(answer: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (answer.error) throw new Error(`${answer.error.code}: ${answer.error.detail}`);
  return answer.data as T;
}

let job = ok(
  await linus.POST("/api/v1/jobs", {
    params: { query: { wait_seconds: 50 }, header: { "Idempotency-Key": crypto.randomUUID() } },
    body: { manifest: { agent_type: "script", task: "echo hello from TypeScript" } },
  }),
);
const path = { id: job.id };
for (let after = 0; job.outcome === undefined || job.completed_at === undefined; ) {
  const news = ok(await linus.GET("/api/v1/jobs/{id}/events", { params: { path, query: { after } } }));
  for (const event of news.items) {
    console.error(event.kind, event.text ?? "");
    after = event.seq;
  }
  job = news.job;
}
const output = ok(
  await linus.GET("/api/v1/jobs/{id}/output", { params: { path, query: { stream: "stdout" } }, parseAs: "text" }),
);
console.log(job.status, job.outcome.exit_code, output.trim());

const missing = await linus.GET("/api/v1/vms/{vm}", { params: { path: { vm: "nobody" } } });
console.log(missing.response.status, missing.error?.code);
