// Drives linus as a program of others would: node drive.mjs GENERATION TRANSPORT
// with GENERATION sdk, client or client-2026 (the packages sdk and client, the
// latter in the protocol it prefers and in 2026-07-28), TRANSPORT stdio (starts
// $LINUS_PROGRAM mcp) or http ($LINUS_URL with $HTTP_TOKEN). Prints what it saw
// as one line of JSON.
import process from "node:process";

const [generation, way] = process.argv.slice(2);
const info = { name: `test-${generation}`, version: "1" };
const options = { capabilities: { elicitation: {} } };
const program = { command: process.env.LINUS_PROGRAM, args: ["mcp"], env: process.env };
const url = way === "http" && new URL(process.env.LINUS_URL);
const headers = { requestInit: { headers: { Authorization: `Bearer ${process.env.HTTP_TOKEN}` } } };

const seen = { asked: [] };
const agree = async (request) => {
  seen.asked.push(request.params.message);
  return { action: "accept", content: { confirm: true } };
};

let client, transport;
if (generation === "sdk") {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
  client = new Client(info, options);
  client.setRequestHandler(ElicitRequestSchema, agree);
  transport = url ? new StreamableHTTPClientTransport(url, headers) : new StdioClientTransport(program);
} else {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = generation === "client-2026" ? { pin: "2026-07-28" } : "legacy";
  client = new Client(info, { ...options, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", agree);
  transport = url ? new StreamableHTTPClientTransport(url, headers) : new StdioClientTransport(program);
}
await client.connect(transport);

const call = async (name, args) => {
  const result = await client.callTool({ name, arguments: args });
  if (result.isError) throw new Error(`${name}: ${result.content[0].text}`);
  return result.structuredContent;
};

seen.tools = (await client.listTools()).tools.length;
seen.prompts = (await client.listPrompts()).prompts.map((p) => p.name).sort();
seen.resources = (await client.listResources()).resources.map((r) => r.uri);
seen.templates = (await client.listResourceTemplates()).resourceTemplates.length;

const task = `echo "from ${generation} by ${way}"; exit 3`;
const { job_id: id } = await call("submit_job", { manifest: { task, agentType: "script" } });
seen.submitted = (await call("get_job_status", { job_id: id })).job_id === id;
for (;;) {
  const result = await client.callTool({ name: "get_job_result", arguments: { job_id: id, wait_seconds: 30 } });
  if (!result.isError) {
    const { status, exit_code, output } = result.structuredContent;
    Object.assign(seen, { status, exit_code, output });
    break;
  }
  if (!result.content[0].text.startsWith("Job not complete")) throw new Error(result.content[0].text);
}
seen.read = (await client.readResource({ uri: `linus://jobs/${id}/output` })).contents[0].text;
const ref = { type: "ref/prompt", name: "diagnose_job" };
const completed = await client.complete({ ref, argument: { name: "job_id", value: id.slice(0, 20) } });
seen.completed = completed.completion.values.includes(id);
const prompt = await client.getPrompt({ name: "diagnose_job", arguments: { job_id: id } });
seen.diagnosed = prompt.messages[1].content.resource.uri === `linus://jobs/${id}/result`;

const name = `${generation}-${way}`;
let vm = await call("provision_vm", { name });
while (vm.status !== "running") vm = await call("get_vm", { vm_id: name });
seen.destroyed = (await call("destroy_vm", { vm_id: name })).name === name; // asks first

await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
