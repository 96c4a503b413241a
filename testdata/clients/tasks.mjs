// Has a job done as a task by the client of ext-tasks: node tasks.mjs TRANSPORT STEP [TASK] with
// TRANSPORT stdio (starts $LINUS_PROGRAM mcp) or http ($LINUS_URL with $HTTP_TOKEN), and STEP
// whole (creates, is told, reads the result, cancels), begin (prints the task that $TASK is, and
// leaves it), see (prints how TASK is) or end (takes TASK up and waits). Prints one line of JSON.
import process from "node:process";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const [way, step, task] = process.argv.slice(2);
const info = { name: "test-tasks", version: "1" };
const protocolVersion = "2026-07-28";
const capabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };

const transport = way === "http"
  ? new StreamableHTTPClientTransport(new URL(process.env.LINUS_URL), { requestInit: { headers: { Authorization: `Bearer ${process.env.HTTP_TOKEN}` } } })
  : new StdioClientTransport({ command: process.env.LINUS_PROGRAM, args: ["mcp"], env: process.env });
const client = new Client(info, { capabilities, versionNegotiation: { mode: { pin: protocolVersion } } });
await client.connect(transport);

// The SDK's client knows no tasks: what is about them goes by its transport, beside it.
const waiting = new Map();
const told = [];
const sdk = transport.onmessage;
transport.onmessage = (message, extra) => {
  const answer = waiting.get(message.id);
  if (message.method === "notifications/tasks") told.push(message.params);
  else if (answer && !message.method) answer(message);
  else if (message.method !== "notifications/subscriptions/acknowledged") sdk(message, extra);
};
let requests = 0;
const send = (request) => new Promise((resolve, reject) => {
  const id = `task-request-${++requests}`;
  waiting.set(id, ({ error, result }) => {
    waiting.delete(id);
    resolve(error ? { kind: "error", error } : { kind: "result", result });
  });
  transport.send({ ...request, jsonrpc: "2.0", id }).catch(reject);
});
const session = createTaskSessionFromClient(client, {
  endpointId: "linus",
  rawDispatch: send,
  v2RequestFraming: { protocolVersion, clientInfo: info, clientCapabilities: capabilities },
});

const call = async (script) => {
  const execution = await session.callTool("submit_job", { manifest: { task: script, agentType: "script" } });
  if (execution.kind !== "task") throw new Error(`submit_job is ${execution.kind}`);
  return execution;
};
const settled = async (execution) => {
  const { outcome } = await execution.settle();
  const { status, exit_code, stdout, job_id } = outcome.result?.structuredContent ?? {};
  return { task: outcome.status, status, exit_code, stdout, same: outcome.result && job_id === execution.handle.taskId };
};
const reference = (taskId) => ({ endpointId: "linus", generation: "v2", taskId, originalOperation: "tools/call" });

let seen;
if (step === "whole") {
  const execution = await call(`echo "as a task by ${way}"; exit 3`);
  const id = execution.handle.taskId;
  const _meta = {
    "io.modelcontextprotocol/protocolVersion": protocolVersion,
    "io.modelcontextprotocol/clientInfo": info,
    "io.modelcontextprotocol/clientCapabilities": capabilities,
  };
  const listening = send({ method: "subscriptions/listen", params: { notifications: { taskIds: [id] }, _meta } });
  seen = await settled(execution);
  await listening; // the stream ends after the task
  const last = told.at(-1);
  seen.told = told.every((t) => t.taskId === id) && `${last.status} ${last.result.structuredContent.exit_code}`;
  const cancelled = await call("sleep 1000");
  await session.cancelTask(cancelled.handle.taskId);
  seen.cancelled = (await settled(cancelled)).task;
} else if (step === "begin") {
  const execution = await call(process.env.TASK);
  seen = { id: execution.handle.taskId };
  await execution.detach();
} else if (step === "see") {
  try {
    seen = { task: (await session.task(task).snapshot()).status };
  } catch (error) {
    seen = { error: error.message, code: error.code };
  }
} else {
  seen = await settled(await session.resumeTask(reference(task)));
}
console.log(JSON.stringify(seen));
process.exit(0);
