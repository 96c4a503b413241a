// Validates the OpenAPI document on its standard input and prints what is wrong with it,
// one problem a line.
import { createConfig, lintFromString } from "@redocly/openapi-core";
import { text } from "node:stream/consumers";
import process from "node:process";

const config = await createConfig({ extends: ["spec", "recommended"] });
for (const found of await lintFromString({ source: await text(process.stdin), config })) {
  console.log(`${found.location[0]?.pointer}: ${found.message} (${found.ruleId})`);
}
