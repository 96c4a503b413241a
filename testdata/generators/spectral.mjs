// Lints the OpenAPI document on its standard input by spectral's recommended rules and prints
// what it finds, one finding a line.
import spectral from "@stoplight/spectral-core";
import parsers from "@stoplight/spectral-parsers";
import rulesets from "@stoplight/spectral-rulesets";
import { text } from "node:stream/consumers";
import process from "node:process";

const linter = new spectral.Spectral();
linter.setRuleset({ extends: [[rulesets.oas, "recommended"]] });
const found = await linter.run(new spectral.Document(await text(process.stdin), parsers.Json));
for (const { code, path, message } of found) console.log(`${path.join("/")}: ${message} (${code})`);
