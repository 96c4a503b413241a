// Sandboxes while all that they need fails now and then, with E2B's SDK, until its stdin ends:
// E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where. What fails is tried again; what answers must
// be right. It prints what it has seen, as JSON.
import { NotFoundError, Sandbox } from 'e2b'

const options = { requestTimeoutMs: 120_000 }
const timeoutMs = 1_200_000
const kinds = ['killed', 'paused', 'stopped', 'ended by its time', 'paused by its time']
const seen = { lives: {}, failures: 0, wrong: [] }
let over = false
process.stdin.on('end', () => { over = true }).resume()

const again = async (work) => {
  for (const end = Date.now() + 300_000; ; await new Promise((resolve) => setTimeout(resolve, 500))) {
    try {
      return await work()
    } catch (err) {
      if (Date.now() > end) throw new Error(`it fails for too long: ${err.message}`, { cause: err })
      seen.failures++
    }
  }
}
const comes = (what, yes) => again(async () => { if (!(await yes())) throw new Error(`waiting for ${what}`) })
const list = (query) => Sandbox.list({ query: { state: ['running', 'paused'], ...query }, ...options }).nextItems()

const live = async (worker, n) => {
  const mine = `${worker}-${n}`
  const kind = kinds[(worker + n) % kinds.length]
  const same = (what, got, want = mine) => got === want || seen.wrong.push([mine, kind, what, got])
  const listed = () => again(() => list({ metadata: { mine } }))
  const clear = async () => { for (const one of await list({ metadata: { mine } })) await Sandbox.kill(one.sandboxId, options) } // those, too, whose creation was not answered
  const sandbox = await again(async () => {
    await clear()
    return Sandbox.create({ timeoutMs, metadata: { mine }, envs: { MINE: mine }, lifecycle: { onTimeout: kind === 'paused by its time' ? 'pause' : 'kill' }, ...options })
  })
  const id = sandbox.sandboxId
  const begun = await again(() => sandbox.commands.run('exec sleep 10000', { background: true, timeoutMs: 0, ...options }))
  await begun.disconnect()
  await again(() => sandbox.files.write('mine', mine, options))
  const whole = async (when, runs) => {
    same(`file ${when}`, await again(() => sandbox.files.read('mine', options)))
    same(`variable ${when}`, (await again(() => sandbox.commands.run('printf %s $MINE', options))).stdout)
    same(`process ${when}`, (await again(() => sandbox.commands.list(options))).some((p) => p.pid === begun.pid), runs)
  }
  const connect = () => again(() => sandbox.connect({ timeoutMs, ...options }))
  const inTime = () => again(() => sandbox.setTimeout(1000, options).catch((err) => { if (!(err instanceof NotFoundError)) throw err })) // it has ended, by a call that failed
  await whole('at first', true)
  const found = await listed()
  same('list', found.some((s) => s.sandboxId === id && s.metadata.mine === mine), true)
  switch (kind) {
    case 'paused':
    case 'stopped':
      await again(() => sandbox.pause({ keepMemory: kind === 'paused', ...options }))
      same('state', (await again(() => sandbox.getInfo(options))).state, 'paused')
      await connect()
      await whole('afterwards', kind === 'paused')
      break
    case 'ended by its time':
      await inTime()
      await comes('its end', async () => (await list({ metadata: { mine } })).every((s) => s.sandboxId !== id))
      break
    case 'paused by its time':
      await inTime()
      await comes('its pause', async () => (await sandbox.getInfo(options)).state === 'paused')
      await connect()
      await whole('afterwards', true)
  }
  await again(() => sandbox.kill(options))
  await again(clear)
  same('list afterwards', (await listed()).some((s) => s.sandboxId === id), false)
  seen.lives[kind] = (seen.lives[kind] ?? 0) + 1
}
await Promise.all([0, 1, 2, 3].map(async (worker) => {
  for (let n = 0; !over; n++) {
    try {
      await live(worker, n)
    } catch (err) { // which says what the sandbox is
      const it = await list({ metadata: { mine: `${worker}-${n}` } }).catch((err) => err.message)
      throw new Error(`sandbox ${worker}-${n}, ${kinds[(worker + n) % kinds.length]}, which is ${JSON.stringify(it)}: ${err.message}`, { cause: err })
    }
  }
}))
console.log(JSON.stringify(seen))
