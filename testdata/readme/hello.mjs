import { Sandbox } from 'e2b'
const sandbox = await Sandbox.create({ metadata: { user: 'me' } })
await sandbox.files.write('hello.sh', 'echo hello from $(hostname)')
console.log((await sandbox.commands.run('sh hello.sh')).stdout.trim())
await sandbox.kill()
