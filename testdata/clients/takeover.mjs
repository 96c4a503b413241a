// Begins a process in a sandbox (begin), or finds it again by another server (go-on ID PID), with E2B's
// SDK: E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where. It prints what it has seen, as JSON.
import { Sandbox } from 'e2b'

const [, , phase, id, pid] = process.argv
const seen = {}
if (phase === 'begin') {
  const sandbox = await Sandbox.create({ timeoutMs: 1_800_000, envs: { WORD: 'tick' } })
  const lines = []
  const begun = await sandbox.commands.run('n=0; while sleep 0.2; do n=$((n+1)); echo $WORD $n; done', { background: true, timeoutMs: 0, onStdout: (text) => lines.push(text) })
  while (lines.length === 0) await new Promise((resolve) => setTimeout(resolve, 100))
  seen.id = sandbox.sandboxId
  seen.pid = String(begun.pid)
  console.log(JSON.stringify(seen))
  process.exit(0) // the stream is open
}
const sandbox = await Sandbox.connect(id, { timeoutMs: 1_800_000 })
seen.listed = (await sandbox.commands.list()).some((p) => String(p.pid) === pid)
seen.heard = await new Promise((resolve, reject) => {
  sandbox.commands.connect(Number(pid), { timeoutMs: 0, onStdout: (text) => resolve(/^tick \d+\n$/.test(text)) }).catch(reject)
})
seen.killed = await sandbox.commands.kill(Number(pid))
seen.gone = await sandbox.kill()
console.log(JSON.stringify(seen))
process.exit(0)
