// Uses a sandbox through E2B's SDK, unmodified, as programs do. Its environment says where that is.
// What it saw is one line of JSON. Usage: node sandbox.mjs DIRECTORY, an empty one of the sandbox.
import { CommandExitError, FileNotFoundError, FileType, InvalidArgumentError, Sandbox, TimeoutError } from "e2b";
import process from "node:process";

const dir = process.argv[2];
const saw = {};
const thrown = (promise, kind) => promise.then(() => "nothing", (e) => (e instanceof kind ? kind.name : String(e)));
const sandbox = await Sandbox.create();

const hello = await sandbox.commands.run("echo hello; echo $NAME >&2; pwd", { envs: { NAME: "you" }, cwd: dir });
saw.hello = [hello.stdout, hello.stderr, hello.exitCode];
saw.failure = await sandbox.commands.run("exit 3").catch((e) => e instanceof CommandExitError && e.exitCode);
saw.timeout = await thrown(sandbox.commands.run("sleep 100", { timeoutMs: 500 }), TimeoutError);

// A process whose client is gone lives on, and is found again.
const cat = await sandbox.commands.run("cat", { background: true, stdin: true });
await cat.disconnect();
saw.listed = (await sandbox.commands.list()).some((p) => p.pid === cat.pid && p.cmd === "/bin/bash");
const again = await sandbox.commands.connect(cat.pid);
await sandbox.commands.sendStdin(cat.pid, "typed");
await again.closeStdin();
saw.again = (await again.wait()).stdout;
const sleep = await sandbox.commands.run("sleep 100", { background: true });
saw.killed = [await sandbox.commands.kill(sleep.pid), await sandbox.commands.kill(999999)];

const file = `${dir}/a/file`;
const large = "0123456789".repeat(200_000);
const written = await sandbox.files.write(file, "text", { metadata: { author: "me" } });
saw.written = [written.name, written.path];
saw.read = await sandbox.files.read(file);
saw.info = (({ size, type, metadata }) => [size, type === FileType.FILE, metadata?.author])(await sandbox.files.getInfo(file));
await sandbox.files.write(`${dir}/large`, large, { useOctetStream: true });
await sandbox.files.write(`${dir}/zipped`, large, { gzip: true });
saw.large = [(await sandbox.files.read(`${dir}/large`, { format: "bytes" })).length, (await sandbox.files.read(`${dir}/zipped`, { gzip: true })) === large];
saw.made = [await sandbox.files.makeDir(`${dir}/b`), await sandbox.files.makeDir(`${dir}/b`)];
saw.moved = (await sandbox.files.rename(file, `${dir}/b/file`)).path;
saw.list = (await sandbox.files.list(dir, { depth: 2 })).map((e) => e.path);
await sandbox.files.remove(`${dir}/b`);
saw.exists = [await sandbox.files.exists(`${dir}/b/file`), await sandbox.files.exists(dir)];
saw.refused = [await thrown(sandbox.files.read(`${dir}/no`), FileNotFoundError), await thrown(sandbox.files.list(`${dir}/large`), InvalidArgumentError)];

const writes = [];
const watch = await sandbox.files.watchDir(dir, (e) => { if (e.type === "write") writes.push(e); }, { recursive: true, includeEntry: true });
await sandbox.files.makeDir(`${dir}/new`);
while (!writes.length) { // until the new directory is watched, too
  await sandbox.files.write(`${dir}/new/file`, "text");
}
await watch.stop();
saw.watched = [writes[0].name, writes[0].entry?.path];

let shown = "";
const terminal = await sandbox.pty.create({ cols: 81, rows: 25, onData: (data) => { shown += Buffer.from(data); } });
await sandbox.pty.resize(terminal.pid, { cols: 101, rows: 33 });
await sandbox.pty.sendInput(terminal.pid, Buffer.from("stty size; exit 4\n"));
saw.terminal = await terminal.wait().catch((e) => [e.exitCode, shown.includes("33 101")]);

console.log(JSON.stringify(saw));
process.exit(0);
