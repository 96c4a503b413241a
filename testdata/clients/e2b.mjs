// A program made for E2B, with its own SDK, uses sandboxes of linus: E2B_API_URL, E2B_SANDBOX_URL and
// E2B_API_KEY say where they are. It prints what it has seen, as JSON.
import http from 'node:http'
import { Sandbox, Volume, CommandExitError, SandboxNotFoundError, FilesystemEventType } from 'e2b'

const seen = {}
const metadata = { userId: 'Ü 1/2', purpose: 'a test' }
const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata, envs: { GREETING: "it's\nme" } })
try {
  seen.environment = (await sandbox.commands.run('printf %s "$GREETING"')).stdout
  seen.failed = await sandbox.commands.run('echo out; echo err >&2; exit 3').catch((e) => e instanceof CommandExitError && [e.exitCode, e.stdout, e.stderr])

  await sandbox.commands.run('pkill -KILL -f "serve --socket"', { user: 'root' }).catch(() => {}) // what answers for the sandbox
  for (let n = 0; n < 50 && !seen.restarted; n++) {
    seen.restarted = (await sandbox.commands.run('echo again').catch(() => ({}))).stdout
  }

  const bytes = new Uint8Array(1 << 20).map((_, n) => n * 31)
  await sandbox.files.write('dir/large.bin', bytes.buffer)
  const back = await sandbox.files.read('dir/large.bin', { format: 'bytes' })
  seen.file = back.length === bytes.length && back.every((b, n) => b === bytes[n])
  seen.listed = (await sandbox.files.list('dir')).map((e) => [e.name, e.size])
  seen.signed = await (await fetch(await sandbox.downloadUrl('dir/large.bin', { useSignatureExpiration: 60 }))).bytes().then((b) => b.length)
  const stale = await fetch(await sandbox.downloadUrl('dir/large.bin', { useSignatureExpiration: -60 }))
  seen.stale = [stale.status, await stale.json()]

  // Its name leads nowhere here, so it goes into the request.
  const ask = (headers) => new Promise((resolve, reject) => http.get(process.env.E2B_API_URL, { headers: { host: sandbox.getHost(1), ...headers }, agent: false }, (r) => resolve(r.resume().statusCode)).on('error', reject))
  seen.host = sandbox.getHost(1).replace(sandbox.sandboxId, 'ID')
  seen.closed = [await ask({}), await ask({ 'e2b-traffic-access-token': sandbox.trafficAccessToken })]

  const created = new Promise((resolve) => {
    void sandbox.files.watchDir('dir', (e) => e.type === FilesystemEventType.CREATE && resolve(e.name)).then(async (w) => {
      await sandbox.files.write('dir/new.txt', 'x')
      seen.watched = await created
      await w.stop()
      seen.stopped = true
    })
  })
  await created

  const lines = []
  const background = await sandbox.commands.run('read line; echo "got $line"; sleep 600', { background: true, stdin: true, timeoutMs: 0 })
  await background.disconnect()
  const again = await new Promise((resolve, reject) => {
    const connected = sandbox.commands.connect(background.pid, { onStdout: (text) => { lines.push(text); connected.then(resolve) } })
    connected.then(() => sandbox.commands.sendStdin(background.pid, 'hello\n')).catch(reject)
  })
  seen.background = lines.join('')
  seen.processes = (await sandbox.commands.list()).some((p) => p.pid === background.pid)
  const before = background.pid

  const screen = []
  let asked = false
  seen.terminal = await new Promise((resolve, reject) => {
    const size = new TextEncoder().encode('echo size $(stty size)\nexit\n')
    const terminal = sandbox.pty.create({
      cols: 91, rows: 33,
      onData: (data) => {
        screen.push(Buffer.from(data))
        if (!asked) terminal.then((t) => sandbox.pty.sendInput(t.pid, size)).catch(reject) // there is a prompt
        asked = true
        if (Buffer.concat(screen).includes('size 33 91')) resolve(true)
      },
    })
    terminal.catch(reject)
  })

  const found = await Sandbox.list({ query: { metadata, state: ['running'] } }).nextItems()
  seen.found = found.map((s) => [s.sandboxId === sandbox.sandboxId, s.metadata])
  await sandbox.setTimeout(600_000)
  const left = (await sandbox.getInfo()).endAt - Date.now()
  seen.time = left > 500_000 && left <= 600_000

  seen.metrics = (await sandbox.getMetrics()).map((m) => m.cpuCount > 0 && m.memTotal > 0 && m.diskTotal > 0)
  const copies = await sandbox.fork({ count: 2, timeoutMs: 300_000 })
  seen.copies = await Promise.all(copies.map(async (copy) => {
    await copy.files.write('dir/new.txt', 'of a copy')
    const size = (await copy.files.getInfo('dir/large.bin')).size
    return [copy.sandboxId !== sandbox.sandboxId, size, await copy.kill()]
  }))
  seen.original = await sandbox.files.read('dir/new.txt')

  seen.paused = await sandbox.pause()
  seen.pausedAgain = await sandbox.pause()
  seen.running = [await sandbox.isRunning()]
  seen.pausedListed = (await Sandbox.list({ query: { metadata, state: ['paused'] } }).nextItems()).length
  const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
  seen.running.push(await resumed.isRunning())
  seen.survives = (await resumed.commands.list()).some((p) => p.pid === before)
  await resumed.commands.kill(before)
  void again
} finally {
  seen.killed = await sandbox.kill()
}
seen.killedAgain = await sandbox.kill()
seen.running.push(await sandbox.isRunning())
seen.gone = await Sandbox.connect(sandbox.sandboxId).catch((e) => e instanceof SandboxNotFoundError)

const named = await Sandbox.create({ timeoutMs: 300_000, network: { allowOut: ['*.example.invalid'], denyOut: ['0.0.0.0/0'] } })
try {
  const said = await named.commands.run('for name in a.example.invalid b.example; do curl -sv --max-time 20 https://$name/ 2>&1 | grep -m 1 "^< HTTP"; done; true')
  seen.names = said.stdout
} finally {
  await named.kill()
}
const volume = await Volume.create('data')
const waking = await Sandbox.create({ timeoutMs: 300_000, lifecycle: { onTimeout: 'pause', autoResume: true }, volumeMounts: { '/srv/data': volume } })
try {
  await waking.files.write('/srv/data/kept', 'of the volume')
  await waking.pause()
  seen.woken = [await waking.isRunning(), (await waking.commands.run('cat /srv/data/kept')).stdout, await waking.isRunning()]
} finally {
  await waking.kill()
}
const forgetting = await Sandbox.create({ timeoutMs: 1000, envs: { KEPT: 'still' }, lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } })
try {
  while ((await forgetting.getInfo()).state !== 'paused') await new Promise((resolve) => setTimeout(resolve, 200))
  const again = await forgetting.connect({ timeoutMs: 300_000 }).catch(() => forgetting.connect({ timeoutMs: 300_000 }))
  seen.forgotten = (await again.commands.run('echo $KEPT; cat /srv/data/kept 2>&1 | wc -l')).stdout
} finally {
  await forgetting.kill()
}
seen.volumes = (await Volume.list()).map((v) => v.name)
while (!seen.volumeGone) seen.volumeGone = await Volume.destroy(volume.volumeId).catch(() => false) // its VM goes first

seen.refused = await Sandbox.create({ network: { allowOut: ['example.com'] } }).catch((e) => e.message)
console.log(JSON.stringify(seen))
