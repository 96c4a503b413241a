// A program made for ComputeSDK uses sandboxes of linus through its provider for E2B: E2B_API_URL,
// E2B_SANDBOX_URL and E2B_API_KEY say where. It prints what it has seen, as JSON.
import { compute } from 'computesdk'
import { e2b } from '@computesdk/e2b'

compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) })
const seen = {}
const began = performance.now()
const sandbox = await compute.sandbox.create({ envs: { GREETING: 'hello' }, metadata: { by: 'computesdk' } })
try {
  seen.first = (await sandbox.runCommand('echo $GREETING')).stdout
  seen.interactive_ms = performance.now() - began // as its benchmarks measure
  const failed = await sandbox.runCommand('echo out; echo err >&2; exit 3')
  seen.failed = [failed.stdout, failed.stderr, failed.exitCode]
  await sandbox.filesystem.mkdir('made')
  await sandbox.filesystem.writeFile('made/file', 'text')
  seen.file = [await sandbox.filesystem.readFile('made/file'), await sandbox.filesystem.exists('made/none'), (await sandbox.filesystem.readdir('made')).map((f) => f.name)]
  seen.listed = (await compute.sandbox.list()).some((s) => s.sandboxId === sandbox.sandboxId)
  seen.found = (await (await compute.sandbox.getById(sandbox.sandboxId)).runCommand('cat made/file')).stdout
} finally {
  await sandbox.destroy()
}
seen.left = (await compute.sandbox.list()).length
console.log(JSON.stringify(seen))
