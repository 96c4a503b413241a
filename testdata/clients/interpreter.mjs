// A program made for E2B's code interpreter runs code in a sandbox. The template with its server is
// built first, of the server's file that is given. It prints what it has seen, as JSON.
import fs from 'node:fs'
import path from 'node:path'
import { Template, waitForURL } from 'e2b'
import { Sandbox } from '@e2b/code-interpreter'

const [file] = process.argv.slice(2)
const seen = {}
await Template.build(
  Template({ fileContextPath: path.dirname(file) }).fromBaseImage().copy(path.basename(file), '/srv/server.py')
    .runCmd('mkdir -p ~/.ipython/profile_default && echo c.IPythonKernel.stop_on_error_timeout = 0.2 >~/.ipython/profile_default/ipython_kernel_config.py')
    .setStartCmd('exec /usr/bin/python3 /srv/server.py', waitForURL('http://127.0.0.1:49999/health')),
  'code-interpreter-v1',
)
const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs: { GREETING: "it's me" } })
try {
  await sandbox.runCode('x = 41')
  const sum = await sandbox.runCode('x + 1')
  seen.remembers = [sum.text, sum.executionCount]
  const heard = []
  const both = await sandbox.runCode("import os, sys; print(os.environ['GREETING']); print('b', file=sys.stderr); 1 / 0", { onStdout: (m) => { heard.push(m.line) }, onError: (e) => { heard.push(e.name) } })
  seen.output = [both.logs.stdout, both.logs.stderr, both.error.name, both.error.value, both.error.traceback.includes('ZeroDivisionError'), heard]
  const picture = await sandbox.runCode("from IPython.display import Image, display; display(Image(b'\\x89PNG', format='png'))")
  seen.picture = [picture.results[0].png.trim(), picture.results[0].isMainResult, picture.text === undefined]
  seen.env = [(await sandbox.runCode("os.environ['GREETING'] + os.environ['B']", { envs: { GREETING: 'not ', B: "'me'" } })).text, (await sandbox.runCode("os.environ['GREETING'], 'B' in os.environ")).text]

  const other = await sandbox.createCodeContext({ cwd: '/tmp' })
  seen.context = [other.language, (await sandbox.runCode('import os; y = 1; os.getcwd()', { context: other })).text, (await sandbox.runCode('y')).error.name]
  await sandbox.restartCodeContext(other)
  seen.restarted = (await sandbox.runCode('y', { context: other })).error.name
  seen.contexts = (await sandbox.listCodeContexts()).length
  await sandbox.removeCodeContext(other)
  seen.removed = [(await sandbox.listCodeContexts()).length, await sandbox.runCode('1', { context: other }).catch((e) => e.name)]
  seen.language = await sandbox.runCode('1', { language: 'r' }).catch((e) => e.message)

  seen.late = await sandbox.runCode('import time\nfor n in range(3000): time.sleep(0.1)', { timeoutMs: 1000 }).catch((e) => e.name)
  seen.after = (await sandbox.runCode('x')).text
  seen.ended = (await sandbox.runCode('os._exit(1)')).error.name
  seen.anew = [(await sandbox.runCode('x')).error.name, (await sandbox.runCode('6 * 7')).text]
} finally {
  await sandbox.kill()
}
console.log(JSON.stringify(seen))
