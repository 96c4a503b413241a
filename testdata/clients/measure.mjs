// Measures what a program waits for with E2B's SDK in one sandbox, in milliseconds, as JSON: E2B_API_URL,
// E2B_SANDBOX_URL and E2B_API_KEY say where.
import { Sandbox } from 'e2b'

const seen = {}
const timed = async (name, work) => {
  const began = performance.now()
  const done = await work()
  seen[name] = performance.now() - began
  return done
}
const median = async (name, work) => {
  const took = []
  for (let n = 0; n < 20; n++) {
    await timed(name, work)
    took.push(seen[name])
  }
  seen[name] = took.sort((a, b) => a - b)[10]
}
const sandbox = await timed('create_ms', () => Sandbox.create({ timeoutMs: 300_000 }))
try {
  await timed('command_ms', () => sandbox.commands.run('true'))
  seen.interactive_ms = seen.create_ms + seen.command_ms
  await median('command_ms', () => sandbox.commands.run('true'))
  const bytes = new Uint8Array(1 << 20).map((_, n) => n * 31).buffer
  await median('file_ms', async () => {
    await sandbox.files.write('file', bytes)
    await sandbox.files.read('file', { format: 'bytes' })
  })
} finally {
  await timed('kill_ms', () => sandbox.kill())
}
console.log(JSON.stringify(seen))
