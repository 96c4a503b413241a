// Lists of addresses of sandboxes, by E2B's SDK.
import { Sandbox } from 'e2b'

const seen = {}
const refused = (network) => Sandbox.create({ network }).then(() => 'made', (e) => e.message)
const all = '0.0.0.0/0'
seen.private = await refused({ allowOut: ['9.9.9.9', '192.168.1.1'], denyOut: [all] })
seen.range = await refused({ allowOut: ['0.0.0.0/1'], denyOut: [all] })
seen.mapped = await refused({ allowOut: ['::ffff:9.9.9.9'], denyOut: [all] })
seen.bits = await refused({ denyOut: ['9.9.9.9/24'] })
seen.many = await refused({ denyOut: Array.from({ length: 4000 }, (_, i) => `9.9.${i >> 8}.${i & 255}`) })
seen.nothing = await refused({ allowOut: ['9.9.9.9'] })

const listed = await Sandbox.create({ timeoutMs: 300_000, network: { allowOut: ['9.9.9.0/24', 'a.example.invalid'], denyOut: ({ allTraffic }) => [allTraffic] } })
seen.ran = (await listed.commands.run('echo -n "$no_proxy"')).stdout
seen.replaced = await listed.updateNetwork({ allowOut: ['9.9.9.9'] }).then(() => 'replaced', (e) => e.message)
await listed.updateNetwork({ denyOut: ['1.1.1.0/24'] })
seen.direct = (await listed.commands.run('echo -n "${no_proxy:-none}"')).stdout
await listed.updateNetwork({ allowOut: ['1.1.1.1', 'b.example.invalid'], denyOut: [all] })
seen.changed = (await listed.commands.run('echo -n "$no_proxy"; echo "|$(curl -sS -o /dev/null --connect-timeout 5 -v https://a.example.invalid https://b.example.invalid 2>&1 | grep -o "HTTP/1.1 [0-9]*" | tr "\n" ,)"')).stdout
seen.info = (await listed.getInfo()).allowInternetAccess
await Sandbox.create({ timeoutMs: 300_000, network: { allowOut: ['8.8.8.128/25'], denyOut: ['8.8.8.0/24'] } })
console.log(JSON.stringify(seen))
