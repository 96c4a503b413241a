// The terminal of a job, over a WebSocket: binary messages are its bytes, text
// messages are JSON. What the VM writes is hostile: it can neither open links nor
// change the title, and there is nothing through which it could reach the
// clipboard.
"use strict";
(() => {
  const screen = document.getElementById("screen");
  const note = document.getElementById("terminal-note");
  const mostInput = 32 << 10; // bytes of one message
  const firstPause = 500; // ms before the first try to connect again
  const longestPause = 15_000;

  // xterm makes style elements of its own: the page's policy knows them by its nonce.
  const create = document.createElement;
  document.createElement = function (name, ...rest) {
    const element = create.call(document, name, ...rest);
    if (String(name).toLowerCase() === "style") element.nonce = screen.dataset.nonce;
    return element;
  };

  const theme = () => {
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue("--" + name).trim();
    const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
    const all = { background: colour("card"), foreground: colour("text"), cursor: colour("text"), cursorAccent: colour("card"), selectionBackground: colour("busy-ground") };
    names.forEach((name, i) => {
      all[name] = colour("c" + i);
      all["bright" + name[0].toUpperCase() + name.slice(1)] = colour("c" + (i + 8));
    });
    return all;
  };
  const term = new Terminal({
    cursorBlink: false,
    fontFamily: getComputedStyle(screen).fontFamily,
    fontSize: 14,
    scrollback: 5000,
    theme: theme(),
    linkHandler: { activate: () => {} },
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (term.options.theme = theme()));
  // Titles, links (8) and the clipboard (52): taken, and ignored.
  for (const code of [0, 1, 2, 8, 52]) term.parser.registerOscHandler(code, () => true);
  const fit = new FitAddon.FitAddon();
  term.loadAddon(fit);
  term.open(screen);
  fit.fit();
  term.focus();

  let socket = null;
  let offset = -(128 << 10); // of the next byte of output; negative: from its end
  let old = Number(screen.dataset.written); // output before this was written before the page was opened
  let done = false;
  let pause = firstPause;

  const say = (state, text) => {
    const line = document.getElementById("connection");
    line.dataset.state = state;
    line.textContent = text;
  };
  const live = () => socket?.readyState === WebSocket.OPEN && !done;
  const ask = (request) => live() && socket.send(JSON.stringify(request));
  const resize = () => ask({ rows: term.rows, columns: term.cols });

  // What xterm itself sends are answers to what it was sent: those to old output
  // were given when it was new.
  const type = (bytes) => {
    if (!live() || old > 0) return;
    for (let i = 0; i < bytes.length; i += mostInput) socket.send(bytes.subarray(i, i + mostInput));
  };
  term.onData((text) => type(new TextEncoder().encode(text)));
  term.onBinary((text) => type(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  term.onResize(resize);
  // All keys are the task's but one, which lets the keyboard out: to a program it is Ctrl+L.
  term.attachCustomKeyEventHandler((e) => {
    if (!e.ctrlKey || !e.shiftKey || e.altKey || e.metaKey || e.code !== "KeyL") return true;
    e.preventDefault();
    if (e.type === "keydown") document.getElementById("leave-terminal").focus();
    return false;
  });

  const news = (n) => {
    if (n.error) note.textContent = n.error;
    if (!n.state) return;
    if (offset >= 0 && n.state.offset > offset) term.write("\r\n[" + (n.state.offset - offset) + " bytes were not kept]\r\n");
    offset = n.state.offset;
    if (offset >= old) old = 0;
    document.getElementById("terminal-status").textContent = n.state.status;
    document.getElementById("terminal-status").className = "status status-" + n.state.status;
    if (n.state.done) {
      done = true;
      term.options.disableStdin = true;
      note.textContent = "The job has ended.";
      say("ended", "");
    }
  };
  const output = (data) => {
    offset += data.byteLength;
    const caughtUp = offset >= old;
    term.write(new Uint8Array(data), () => {
      if (caughtUp) old = 0;
    });
  };

  const connect = () => {
    socket = new WebSocket(location.origin.replace(/^http/, "ws") + screen.dataset.socket + "?offset=" + offset);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      pause = firstPause;
      say("live", "Live");
      resize();
    };
    socket.onmessage = (e) => (typeof e.data === "string" ? news(JSON.parse(e.data)) : output(e.data));
    socket.onclose = (e) => {
      if (e.reason) note.textContent = e.reason;
      if (done || e.code === 1000) {
        done = true;
        say("ended", "");
        return;
      }
      say("lost", "Connection lost, trying again…");
      setTimeout(connect, pause);
      pause = Math.min(pause * 2, longestPause);
    };
  };
  new ResizeObserver(() => fit.fit()).observe(screen);
  for (const button of document.querySelectorAll("[data-signal]")) {
    button.addEventListener("click", () => {
      ask({ signal: button.dataset.signal });
      term.focus();
    });
  }
  connect();
})();
