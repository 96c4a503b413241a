// Runs an OpenID Connect server on this machine. It gives clients access tokens for
// whatever resource they name: ci with the scopes linus:read and linus:run, reader with
// linus:read, boss with linus:run and linus:admin, nobody with none of them. Their secret is
// $ISSUER_SECRET, as is that of the client page, by which people log in and come back to
// $REDIRECT_URI: whoever says to be alice is in the group devs, boss in admins, and anybody
// else in none. Prints its URL, and ends with its input.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import process from "node:process";
import { Provider } from "oidc-provider";

const client = (client_id, scope) => ({
  client_id, scope, client_secret: process.env.ISSUER_SECRET,
  grant_types: ["client_credentials"], redirect_uris: [], response_types: [],
});
const clients = [client("ci", "linus:read linus:run"), client("reader", "linus:read"), client("boss", "linus:run linus:admin"), client("nobody", "other")];
if (process.env.REDIRECT_URI) {
  clients.push({ client_id: "page", client_secret: process.env.ISSUER_SECRET, redirect_uris: [process.env.REDIRECT_URI] });
}
const groups = { alice: ["devs", "other"], boss: ["admins"] };
const key = { ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }), kid: "first", use: "sig", alg: "RS256" };

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(url, {
    jwks: { keys: [key] },
    cookies: { keys: [process.env.ISSUER_SECRET] },
    scopes: ["linus:read", "linus:run", "linus:admin", "other"],
    clients,
    claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, groups: groups[id] }) }),
    loadExistingGrant: async (ctx) => { // nobody is asked whether the page may know
      const grant = new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
      grant.addOIDCScope("openid profile groups");
      await grant.save();
      return grant;
    },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    pkce: { required: () => true },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({
          audience: resource, scope: "linus:read linus:run linus:admin other",
          accessTokenFormat: "jwt", accessTokenTTL: 600,
        }),
      },
    },
  });
  const answers = provider.callback();
  server.on("request", async (req, res) => {
    if (!req.url.startsWith("/interaction/")) return answers(req, res);
    if (req.method !== "POST") {
      res.setHeader("Content-Type", "text/html");
      return res.end('<h1>Who are you?</h1><form method="post"><input id="name" name="name"><button id="say">Log in</button></form>');
    }
    let body = "";
    for await (const part of req) body += part;
    const name = new URLSearchParams(body).get("name");
    return provider.interactionFinished(req, res, name === "" ? { error: "access_denied", error_description: "nobody" } : { login: { accountId: name } });
  });
  console.log(url);
});
process.stdin.on("end", () => process.exit()).resume();
