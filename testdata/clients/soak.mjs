// Sandboxes while all that they need fails now and then, with E2B's SDK, for so many seconds as its
// argument says: E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where. What fails is tried again; what
// answers must be right. It prints what it has seen, as JSON.
import { Sandbox } from 'e2b'

const until = Date.now() + 1000 * Number(process.argv[2])
const options = { requestTimeoutMs: 120_000 }
const seen = { lives: 0, failures: 0, wrong: [] }
const again = async (work) => {
  for (let n = 0; n < 60; n++) {
    try {
      return await work()
    } catch {
      seen.failures++
      await new Promise((resolve) => setTimeout(resolve, 500))
    }
  }
  throw new Error('it fails for too long')
}
const live = async (worker, n) => {
  const mine = `${worker}-${n}`
  const sandbox = await again(() => Sandbox.create({ timeoutMs: 1_200_000, metadata: { mine }, envs: { MINE: mine }, ...options }))
  const same = (what, got) => got === mine || seen.wrong.push([mine, what, got])
  await again(() => sandbox.files.write('mine', mine, options))
  same('file', await again(() => sandbox.files.read('mine', options)))
  same('variable', (await again(() => sandbox.commands.run('printf %s $MINE', options))).stdout)
  if (n % 2) {
    await again(() => sandbox.pause({ keepMemory: n % 4 === 1, ...options }))
    await again(() => sandbox.connect({ timeoutMs: 1_200_000, ...options }))
    same('variable afterwards', (await again(() => sandbox.commands.run('printf %s $MINE', options))).stdout)
    same('file afterwards', await again(() => sandbox.files.read('mine', options)))
  }
  const listed = await again(() => Sandbox.list({ query: { metadata: { mine } }, ...options }).nextItems())
  if (!listed.some((s) => s.sandboxId === sandbox.sandboxId)) seen.wrong.push([mine, 'list', listed.map((s) => s.sandboxId)])
  await again(() => sandbox.kill(options))
  seen.lives++
}
await Promise.all([0, 1, 2, 3].map(async (worker) => { for (let n = 0; Date.now() < until; n++) await live(worker, n) }))
// One that was made while nobody could be told of it is not known to its client.
for (;;) {
  const left = await again(() => Sandbox.list({ query: { state: ['running', 'paused'] }, ...options }).nextItems())
  if (left.length === 0) break
  await Promise.all(left.map((s) => again(() => Sandbox.kill(s.sandboxId, options))))
}
console.log(JSON.stringify(seen))
