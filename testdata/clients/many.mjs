// Many sandboxes at once, as many as its argument says, with E2B's SDK: E2B_API_URL, E2B_SANDBOX_URL
// and E2B_API_KEY say where. Each keeps what is its own. It prints what it has seen, as JSON.
import { Sandbox } from 'e2b'

const count = Number(process.argv[2])
const each = (work) => Promise.all(Array.from({ length: count }, (_, n) => work(n)))
const options = { requestTimeoutMs: 600_000 }
const made = await Promise.allSettled(Array.from({ length: count }, (_, n) => Sandbox.create({ timeoutMs: 1_800_000, metadata: { n: String(n) }, envs: { N: String(n) }, ...options })))
const sandboxes = made.filter((m) => m.status === 'fulfilled').map((m) => m.value)
const seen = { failed: made.filter((m) => m.status !== 'fulfilled').map((m) => m.reason.message) }
try {
  if (seen.failed.length === 0) {
    await each((n) => sandboxes[n].files.write('mine', `of ${n}`, options))
    const said = await each((n) => sandboxes[n].commands.run('echo $N; cat mine', options))
    seen.wrong = said.map((s, n) => [s.stdout, `${n}\nof ${n}`]).filter(([got, want]) => got !== want)
    const pages = Sandbox.list()
    seen.listed = 0
    while (pages.hasNext) seen.listed += (await pages.nextItems()).length
    seen.distinct = new Set(sandboxes.map((s) => s.sandboxId)).size
  }
} finally {
  seen.killed = (await Promise.all(sandboxes.map((s) => s.kill(options)))).filter((k) => k).length
}
console.log(JSON.stringify(seen))
