// A program made for E2B builds a template with its own SDK, and uses it: E2B_API_URL,
// E2B_SANDBOX_URL and E2B_API_KEY say where, the last of an admin. It prints what it has seen, as JSON.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { Sandbox, Template, BuildError, waitForFile } from 'e2b'

const seen = {}
const context = fs.mkdtempSync(path.join(os.tmpdir(), 'context-'))
fs.mkdirSync(path.join(context, 'app/deep'), { recursive: true })
fs.writeFileSync(path.join(context, 'app/main.sh'), 'echo "I am $NAME of $(cat deep/data)" >started; exec sleep 600\n')
fs.writeFileSync(path.join(context, 'app/deep/data'), 'data')
fs.writeFileSync(path.join(context, 'one.txt'), 'one')
const make = () =>
  Template({ fileContextPath: context })
    .fromBaseImage()
    .runCmd('echo to stdout; echo to stderr >&2')
    .setWorkdir('work')
    .copy('app', 'app')
    .copy('one.txt', '/srv/two.txt', { user: 'root', mode: 0o600 })
    .setEnvs({ NAME: "it's me", TWICE: '$NAME, $NAME' })
    .setWorkdir('app')
const logs = []
const onBuildLogs = (entry) => logs.push(entry.message)

seen.before = await Template.exists('built')
const made = await Template.build(make().setStartCmd('bash main.sh', waitForFile('started')), 'built:v1', { onBuildLogs, cpuCount: 3, memoryMB: 3072 })
seen.made = [made.name, made.templateId]
seen.logs = ['to stdout', 'to stderr', "Uploaded 'app'"].map((line) => logs.some((l) => l.includes(line)))
seen.exists = await Template.exists('built')

const sandbox = await Sandbox.create('built', { timeoutMs: 300_000, envs: { NAME: 'another' } })
try {
  seen.size = (({ cpuCount, memoryMB }) => [cpuCount, memoryMB])(await sandbox.getInfo())
  seen.ran = (await sandbox.commands.run('pwd; until grep -hs another started; do sleep 0.1; done; echo $TWICE; ls; rm started')).stdout
  seen.root = (await sandbox.commands.run('stat -c "%u %a" /srv/two.txt; cat /srv/two.txt', { user: 'root' })).stdout
  seen.processes = (await sandbox.commands.list()).map((p) => p.tag)
  await sandbox.pause({ keepMemory: false })
  await sandbox.connect({ timeoutMs: 300_000 })
  seen.again = (await sandbox.commands.run('echo $NAME, $TWICE; until grep -hs another started; do sleep 0.1; done')).stdout
} finally {
  await sandbox.kill()
}

logs.length = 0
await Template.build(make().runCmd('touch again'), 'built', { onBuildLogs }) // in the place of the one before
seen.cached = logs.some((l) => l.includes("Skipping upload of 'app'"))
seen.failed = await Template.build(make().runCmd('echo why; exit 4'), 'unbuilt', { onBuildLogs }).catch((e) => [e instanceof BuildError, e.message])
seen.why = logs.includes('why')
seen.unbuilt = await Template.exists('unbuilt')
seen.image = await Template.build(Template().fromPythonImage('3'), 'unbuilt').catch((e) => e.message)
seen.taken = await Template.build(make(), process.argv[2]).catch((e) => e.message)
seen.left = (await Sandbox.list().nextItems()).length
console.log(JSON.stringify(seen))
