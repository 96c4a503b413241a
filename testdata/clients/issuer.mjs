// Runs an OpenID Connect server on this machine that gives clients access tokens for
// whatever resource they name: ci with the scopes linus:read and linus:run, reader with
// linus:read, boss with linus:run and linus:admin, nobody with none of them. Their secret is $ISSUER_SECRET. Prints its URL,
// and ends with its input.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import process from "node:process";
import { Provider } from "oidc-provider";

const client = (client_id, scope) => ({
  client_id, scope, client_secret: process.env.ISSUER_SECRET,
  grant_types: ["client_credentials"], redirect_uris: [], response_types: [],
});
const key = { ...generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" }), kid: "first", use: "sig", alg: "RS256" };

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(url, {
    jwks: { keys: [key] },
    scopes: ["linus:read", "linus:run", "linus:admin", "other"],
    clients: [client("ci", "linus:read linus:run"), client("reader", "linus:read"), client("boss", "linus:run linus:admin"), client("nobody", "other")],
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
  server.on("request", provider.callback());
  console.log(url);
});
process.stdin.on("end", () => process.exit()).resume();
