// Lists the tools of the MCP server at $LINUS_URL, of which it knows nothing else, and calls
// one that only an admin may if that is asked for: node oauth.mjs GENERATION CLIENT SCOPE
// [cleanup], with GENERATION sdk or client (the packages) and CLIENT one of issuer.mjs.
// Prints the tools and the call's result as one line of JSON.
import process from "node:process";

const [generation, clientId, scope, cleanup] = process.argv.slice(2);
const url = new URL(process.env.LINUS_URL);
const info = { name: `test-${generation}`, version: "1" };
const from = generation === "sdk"
  ? { ...await import("@modelcontextprotocol/sdk/client/index.js"), ...await import("@modelcontextprotocol/sdk/client/streamableHttp.js"), ...await import("@modelcontextprotocol/sdk/client/auth-extensions.js") }
  : await import("@modelcontextprotocol/client");
const authProvider = new from.ClientCredentialsProvider({ clientId, clientSecret: process.env.ISSUER_SECRET, scope, expectedIssuer: process.env.ISSUER_URL });
const client = new from.Client(info);
await client.connect(new from.StreamableHTTPClientTransport(url, { authProvider }));
const tools = (await client.listTools()).tools.map((t) => t.name).sort();
const called = cleanup && await client.callTool({ name: "cleanup_completed_jobs", arguments: {} });
console.log(JSON.stringify({ tools, result: called?.structuredContent }));
await client.close();
