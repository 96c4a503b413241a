# shellcheck shell=bash
# The program that clients of E2B's code interpreter ask in a sandbox, as a text, because
# bootstrap_guest may depend on no file beside it.

# It listens on the guest's loopback, as the sandbox's user. Its output is lines of JSON.
interpreter_server() {
  cat <<'PYTHON'
# What @e2b/code-interpreter asks at port 49999 of a sandbox: code runs in kernels of Jupyter.
import http.server
import json
import os
import queue
import signal
import threading
import uuid

from jupyter_client import KernelManager

MOST = 16 << 20  # bytes of a request
KEEPALIVE = 5  # seconds of silence, after which a client that has gone is noticed
START = 60  # seconds a kernel has for its start
FORMATS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "text/latex": "latex", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "application/json": "json", "application/javascript": "javascript",
}


class Refused(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Context:
    """A kernel, which remembers what ran in it. One piece of code runs at a time."""

    def __init__(self, cwd):
        if not os.path.isdir(cwd):
            raise Refused(400, f"cwd: {cwd} is no directory of this sandbox")
        self.id, self.cwd, self.lock, self.closed = str(uuid.uuid4()), cwd, threading.Lock(), False
        self.process = None
        self.begin()

    def begin(self):
        """Starts a kernel unless one lives."""
        if self.closed or self.process and self.process.poll() is None:
            return
        if self.process:
            self.client.stop_channels()
            self.kernel.cleanup_resources()
        self.kernel = KernelManager(kernel_name="python3")
        self.kernel.start_kernel(cwd=self.cwd, env={**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
        self.process = self.kernel.provisioner.process
        self.client = self.kernel.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=START)
        except BaseException:
            self.process.kill()
            raise

    def restart(self):
        ended = self.process
        ended.kill()  # whoever reads what runs sees it end
        with self.lock:
            ended.wait()
            self.begin()

    def close(self):
        self.closed = True
        self.process.kill()

    def messages(self, code, silent=False):
        """Yields what the kernel says of code until that has ended, and None while it says nothing."""
        asked = self.client.execute(code, silent=silent, allow_stdin=False, stop_on_error=False)  # or what comes next is dropped
        silence = 0
        while True:
            try:
                said = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if self.process.poll() is not None:
                    raise EOFError from None
                silence += 1
                if silence % KEEPALIVE == 0:
                    yield None
                continue
            if said["parent_header"].get("msg_id") != asked:
                continue
            if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
                return
            yield said

    def set_env(self, env):
        """Sets variables of the kernel's process, and removes those that are None."""
        if not env:
            return
        code = f"for _n, _v in {env!r}.items():\n    os.environ.pop(_n, None)\n    if _v is not None: os.environ[_n] = _v"
        for _ in self.messages(f"exec({code!r}, {{'os': __import__('os')}})", silent=True):
            pass

    def run(self, code, env):
        """Yields the lines of an answer. The code is interrupted when nobody wants more of them."""
        with self.lock:
            heard = True
            try:
                self.begin()
                self.set_env(env)
                said = self.messages(code)
                try:
                    for message in said:
                        line = line_of(message) if message else {"type": "keepalive"}
                        if line:
                            yield line
                except GeneratorExit:
                    heard = False
                    self.process.send_signal(signal.SIGINT)
                    for _ in said:
                        pass
                self.set_env({name: os.environ.get(name) for name in env})
            except EOFError:
                self.begin()
                if heard:
                    yield {"type": "error", "name": "ContextRestarting", "value": "The kernel has ended: what was defined in it is gone", "traceback": ""}


def line_of(said):
    kind, content = said["msg_type"], said["content"]
    if kind == "stream":
        return {"type": content["name"], "text": content["text"]}
    if kind == "error":
        return {"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": "\n".join(content["traceback"])}
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind not in ("execute_result", "display_data"):
        return None
    line = {FORMATS.get(mime, mime): data for mime, data in content["data"].items()}
    text = line.get("text", "")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        line["text"] = text[1:-1]
    return {**line, "type": "result", "is_main_result": kind == "execute_result"}


contexts = {}
making = threading.Lock()


def make_context(cwd):
    made = Context(cwd or os.path.expanduser("~"))
    contexts[made.id] = made
    return made


def context(named):
    if named not in contexts:
        raise Refused(404, f"Context {named} not found")
    return contexts[named]


def check_language(language):
    if (language or "python").lower().strip() not in ("python", "python3"):
        raise Refused(400, f"language: {language} is not here: python is, and commands.run runs others")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer()

    do_POST = do_DELETE = do_GET

    def log_message(self, *_):
        pass

    def answer(self):
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= MOST:
                raise Refused(413, f"a request has {MOST} bytes at most")
            asked = json.loads(self.rfile.read(length) or b"{}")
            if not isinstance(asked, dict):
                raise ValueError("it is no object")
            match self.command, *self.path.partition("?")[0].strip("/").split("/"):
                case "GET", "health":
                    self.reply(200, "OK")
                case "POST", "execute":
                    check_language(asked.get("language"))
                    of = context(asked.get("context_id") or standard)
                    self.stream(of.run(str(asked["code"]), {str(n): str(v) for n, v in (asked.get("env_vars") or {}).items()}))
                case "POST", "contexts":
                    check_language(asked.get("language"))
                    self.reply(200, show(make_context(asked.get("cwd"))))
                case "GET", "contexts":
                    self.reply(200, [show(c) for c in list(contexts.values())])
                case "POST", "contexts", named, "restart":
                    context(named).restart()
                    self.reply(200, None)
                case "DELETE", "contexts", named:
                    context(named)
                    contexts.pop(named).close()
                    self.reply(200, None)
                case _:
                    raise Refused(404, f"{self.command} {self.path} is nothing here")
        except Refused as e:
            self.close_connection = True
            self.reply(e.status, str(e))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            self.reply(400, f"the request cannot be read: {e!r}")
        except (RuntimeError, OSError) as e:
            self.reply(500, f"the kernel does not start: {e}")

    def reply(self, status, said):
        body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if isinstance(said, str) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, lines):
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in lines:
                self.chunk(line)
            self.chunk({"type": "end_of_execution"})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            lines.close()

    def chunk(self, line):
        data = json.dumps(line, default=str).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def show(c):
    return {"id": c.id, "language": "python", "cwd": c.cwd}


standard = make_context(None).id
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("LINUS_INTERPRETER_PORT", "49999"))), Handler).serve_forever()
PYTHON
}
