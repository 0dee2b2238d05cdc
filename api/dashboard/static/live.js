// Numbers, ages and staleness of an open page, and its keys. Every page is whole without it.
"use strict";
(() => {
  const $ = (s, root = document) => root.querySelector(s), $$ = (s, root = document) => [...root.querySelectorAll(s)];
  const body = document.body, icon = $("link[rel=icon]"), least = 3000;
  let title = document.title, state = body.dataset.state, count = Number(body.dataset.count), version = body.dataset.version;
  let every = Number($("footer").dataset.every), due = performance.now() + every; // of values, which may be dear
  // The box's clock, carried on by ours: its offset and time zone do not matter.
  let at = Date.parse(body.dataset.at), seen = performance.now(), stale = false, failing = false;
  const now = () => at + (performance.now() - seen);
  const span = (ms) => {
    const s = Math.max(0, Math.round(ms / 1000));
    return s < 90 ? `${s} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
  };
  const clock = (t) => new Date(t).toISOString().slice(11, 19);
  const sign = () => {
    document.title = (stale ? "(!) " : count ? `(${count}) ` : "") + title;
    const href = `/dashboard/static/icon-${stale ? "bad" : state}.svg`;
    if (icon.getAttribute("href") !== href) icon.href = href;
  };
  sign();

  // swap takes the content of a newer version of the page. What is open stays open, and the focus stays.
  const swap = (fresh) => {
    const main = $("main"), next = $("main", fresh), active = document.activeElement;
    if (!next || !getSelection().isCollapsed || (main.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName))) return false;
    const open = $$("details[open]", main).map((e) => e.id), id = (e) => e.id || e.getAttribute("href") || e.getAttribute("aria-label");
    const focus = main.contains(active) && id(active), scroll = $$(".path, .wide, .chips, nav ul").map((e) => e.scrollLeft);
    main.innerHTML = next.innerHTML;
    for (const e of $$("details", main)) e.open = open.includes(e.id);
    $$(".path, .wide, .chips, nav ul").forEach((e, i) => { e.scrollLeft = scroll[i]; });
    if (focus) $$("a, button, summary, [tabindex]", main).find((e) => id(e) === focus)?.focus({ preventScroll: true });
    title = fresh.title; version = fresh.body.dataset.version;
    ready();
    return true;
  };
  const poll = async () => {
    try {
      const whole = body.dataset.live && !document.hidden && performance.now() >= due;
      const answer = await fetch("/dashboard/live.json" + (whole ? "?page=" + encodeURIComponent(body.dataset.live) : ""), { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw answer.status;
      const data = await answer.json();
      at = Date.parse(data.at); seen = performance.now(); failing = false; state = body.dataset.state = data.state; count = data.count;
      if (whole) {
        due = seen + (every = data.every);
        for (const e of $$("[data-k]")) if (e.dataset.k in data.k && e.textContent !== data.k[e.dataset.k]) e.textContent = data.k[e.dataset.k];
        if (data.version !== version) {
          const page = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(6000) });
          swap(new DOMParser().parseFromString(await page.text(), "text/html"));
        }
      }
    } catch { failing = true; }
    tick();
    setTimeout(poll, least);
  };
  const tick = () => {
    const age = performance.now() - seen;
    stale = failing && age > 7500; // timers of a tab in the background come late
    for (const e of $$("time[data-ago]")) e.textContent = span(now() - Date.parse(e.dateTime));
    $("#clock").textContent = clock(stale ? at : now());
    $("#stale b").textContent = span(age); $("#stale span").textContent = clock(at);
    document.documentElement.classList.toggle("stale", stale);
    $("#stale").hidden = !stale; $("#live").textContent = stale ? "Stopped" : "Live";
    sign();
  };
  setInterval(tick, 1000);
  setTimeout(poll, least);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) due = 0; });

  // Keys: / filter, g then o, s, y copies the first command.
  let g = false;
  addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) { if (e.key === "Escape") e.target.blur(); return; }
    const to = g && { o: "/dashboard/", s: "/dashboard/services" }[e.key];
    g = e.key === "g";
    if (to) location.href = to;
    else if (e.key === "/" && $("#q")) { e.preventDefault(); $("#q").select(); }
    else if (e.key === "/") location.href = "/dashboard/services#q";
    else if (e.key === "y") $(".copy")?.click();
  });
  if (location.hash === "#q") $("#q")?.focus();
  addEventListener("click", async (e) => {
    const b = e.target.closest("button.copy");
    if (!b) return;
    const code = $("code", b.parentElement);
    try { await navigator.clipboard.writeText(code.textContent); b.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); b.textContent = "Selected"; }
    setTimeout(() => { b.textContent = "Copy"; }, 1500);
  });
  // The filter works on the page that is here while one types, and on all pages by Enter (a GET, as without scripts).
  addEventListener("input", (e) => {
    if (e.target.id !== "q") return;
    const words = e.target.value.toLowerCase().split(/\s+/);
    let n = 0;
    for (const r of $$("tbody tr")) { const on = words.every((w) => r.textContent.toLowerCase().includes(w)); r.hidden = !on; n += on; }
    if ($("#shown")) $("#shown").textContent = e.target.value ? `${n} of this page; Enter searches all` : $("#shown").dataset.all;
  });

  // A reading under the pointer.
  const ready = () => {
    const graph = $(".graph");
    if (!graph) return;
    const cross = $(".cross", graph), read = $(".read", graph), series = JSON.parse(graph.dataset.points), from = Date.parse(graph.dataset.from), step = Number(graph.dataset.step) * 1000;
    graph.addEventListener("pointermove", (e) => {
      const box = $("svg", graph).getBoundingClientRect(), n = series.new.length;
      const i = Math.min(n - 1, Math.max(0, Math.round((e.clientX - box.left) / box.width * (n - 1))));
      for (const x of ["x1", "x2"]) cross.setAttribute(x, i / (n - 1) * 1000);
      cross.removeAttribute("hidden"); read.hidden = false;
      read.textContent = clock(from + i * step) + (series.new[i] < 0 ? "  not read" : `  ${series.new[i]} new/s, ${series.ref[i]} refused/s, ${series.fail[i]} failed/s, ${series.open[i].toLocaleString("en")} open`);
    });
    graph.addEventListener("pointerleave", () => { read.hidden = true; cross.setAttribute("hidden", ""); });
  };
  ready();
})();
