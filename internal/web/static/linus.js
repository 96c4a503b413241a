// What the pages need besides htmx: the state of the connection, bounded output
// that scrolls along, forms that are cleared, and streams that pause while the
// page is hidden.
"use strict";
(() => {
  const mostText = 1 << 20; // characters of output kept on a page
  const restTime = 30_000; // ms a page may be hidden before its stream is closed

  const say = (state, text) => {
    const line = document.getElementById("connection");
    if (line && line.dataset.state !== state) {
      line.dataset.state = state;
      line.textContent = text;
    }
  };
  document.addEventListener("htmx:sseOpen", () => say("live", "Live"));
  let leaving = false; // a logout ends the stream before the browser is told where to go
  document.addEventListener("submit", (e) => {
    leaving ||= e.target.matches('form[action="/logout"]');
  });
  document.addEventListener("htmx:sseError", async () => {
    say("lost", "Connection lost, trying again…");
    try {
      const answer = await fetch(location.href, { method: "HEAD" });
      if (answer.status === 401 && !leaving) location.reload(); // logged out: only the login page may be seen
    } catch {} // the server is away
  });
  document.addEventListener("htmx:sseClose", (e) => {
    if (e.detail.type === "message") say("ended", "");
  });

  // A terminal scrolled to its end stays there.
  const terminal = (e) => e.target.closest(".output .terminal");
  document.addEventListener("htmx:sseBeforeMessage", (e) => {
    const t = terminal(e);
    if (t) t.follows = t.scrollHeight - t.scrollTop - t.clientHeight < 40;
  });
  document.addEventListener("htmx:sseMessage", (e) => {
    const t = terminal(e);
    if (!t) return;
    const pieces = t.getElementsByClassName("piece");
    let size = t.textContent.length;
    while (size > mostText && pieces.length > 1) {
      size -= pieces[0].textContent.length;
      pieces[0].remove();
    }
    if (t.follows) t.scrollTop = t.scrollHeight;
  });
  // Of a job that fails, why is on stderr, and that comes first; where the keyboard is stays in its place.
  document.addEventListener("htmx:sseMessage", () => {
    const out = document.getElementById("stdout")?.closest("section");
    const err = document.getElementById("stderr")?.closest("section");
    if (!out || !err || !document.querySelector(".lead .status-failed") || !err.querySelector("pre").textContent) return;
    if (err.compareDocumentPosition(out) & Node.DOCUMENT_POSITION_FOLLOWING) return;
    if (err.contains(document.activeElement)) err.after(out);
    else out.before(err);
    const t = err.querySelector(".terminal");
    t.scrollTop = t.scrollHeight;
  });
  for (const t of document.querySelectorAll(".output .terminal")) t.scrollTop = t.scrollHeight;

  document.addEventListener("htmx:afterRequest", (e) => {
    const form = e.target.closest("form");
    if (!form) return;
    const problem = form.querySelector("[role=alert]");
    problem.hidden = e.detail.successful;
    problem.textContent = e.detail.successful ? "" : e.detail.xhr.responseText || "The server does not answer.";
    if (e.detail.successful) form.reset();
  });

  // A form that is being sent is not sent again.
  document.addEventListener("submit", (e) => {
    if (e.target.hasAttribute("hx-post") || e.target.method !== "post") return;
    setTimeout(() => {
      for (const button of e.target.querySelectorAll("button")) button.disabled = true;
    });
  });
  addEventListener("pageshow", (e) => {
    if (e.persisted) for (const button of document.querySelectorAll("button")) button.disabled = false;
  });

  // Files can be dropped on a form, and a variable always has room for another.
  for (const zone of document.getElementsByClassName("drop")) {
    const chosen = zone.querySelector("input[type=file]");
    const over = (e, is) => {
      if (!e.dataTransfer.types.includes("Files")) return;
      e.preventDefault();
      zone.classList.toggle("over", is);
    };
    zone.addEventListener("dragover", (e) => over(e, true));
    zone.addEventListener("dragleave", (e) => over(e, false));
    zone.addEventListener("drop", (e) => {
      over(e, false);
      const all = new DataTransfer();
      for (const f of [...chosen.files, ...e.dataTransfer.files]) all.items.add(f);
      chosen.files = all.files;
    });
  }
  // What does not apply is hidden, and not sent. What a page comes with stays to be seen.
  const valueOf = (f) => (f.disabled || (f.type === "checkbox" && !f.checked) ? "" : f.value);
  const given = (f) =>
    f.hasAttribute("aria-invalid") || (f.tagName === "SELECT" ? f.selectedIndex > 0 : valueOf(f) !== "");
  const adapt = (form, changed) => {
    const fields = "input, select, textarea";
    for (const part of form.querySelectorAll("[data-when]")) {
      const conditions = part.dataset.when.split(" ").map((c) => c.split(/=(.*)/));
      const applies = conditions.every(([name, is]) => !form.elements[name] || new RegExp(is).test(valueOf(form.elements[name])));
      const mine = [...part.querySelectorAll(fields)];
      if (changed ? conditions.some(([name]) => name === changed) : applies || !mine.some(given)) part.hidden = !applies;
      for (const f of mine) f.disabled = f.closest("[data-when][hidden]") !== null;
    }
  };
  for (const form of document.querySelectorAll("form.making")) {
    adapt(form);
    form.addEventListener("change", (e) => adapt(form, e.target.name));
    form.addEventListener("click", (e) => {
      const fill = e.target.closest("[data-fill]");
      if (!fill) return;
      e.preventDefault();
      for (const [name, value] of new URLSearchParams(fill.dataset.fill)) {
        if (form.elements[name]) form.elements[name].value = value;
      }
      for (const group of form.querySelectorAll("details")) group.open ||= [...group.querySelectorAll("input, select")].some(given);
      adapt(form);
    });
  }
  document.addEventListener("input", (e) => {
    const row = e.target.closest(".pair:not(.kept)");
    if (!row || row.nextElementSibling?.matches(".pair")) return;
    const next = row.cloneNode(true);
    for (const field of next.querySelectorAll("input, textarea")) field.value = "";
    row.after(next);
  });

  // A browser has few connections per server: hidden tabs give theirs up.
  let rest = 0;
  let resting = false;
  const streams = () => document.querySelectorAll("[sse-connect]");
  document.addEventListener("visibilitychange", () => {
    clearTimeout(rest);
    if (document.hidden) {
      rest = setTimeout(() => {
        resting = true;
        for (const s of streams()) htmx.trigger(s, "htmx:beforeCleanupElement");
      }, restTime);
    } else if (resting) {
      resting = false;
      for (const s of streams()) {
        htmx.trigger(s, "htmx:afterProcessNode");
        for (const part of s.querySelectorAll("[sse-swap]")) htmx.trigger(part, "htmx:afterProcessNode");
      }
    }
  });
})();
