// Search finds the sections that have every word of the query; those with them in a heading come first. The index is loaded when
// the field is used for the first time.
(function () {
  "use strict";
  const up = document.currentScript.dataset.up;
  document.addEventListener("DOMContentLoaded", function () {
    const form = document.querySelector("form"), field = document.getElementById("query"), found = document.getElementById("found");
    const menu = document.querySelector("nav details");
    form.hidden = false;
    if (menu && matchMedia("(max-width: 60rem)").matches) menu.open = false;
    let loading;
    const load = function () {
      if (!loading) loading = new Promise(function (done) {
        const script = document.createElement("script");
        script.src = up + "site/index.js";
        script.onload = function () { done(window.sections); };
        document.head.append(script);
      });
      return loading;
    };
    // A word is found at the beginning of words, without its ending; one of two letters, as "no", as a whole.
    const count = function (text, word) {
      const exact = (word.length > 4 && !word.includes(" ") ? word.replace(/(es|ed|ing|s|e|y)$/, "") : word).replace(/[^\w]/g, "\\$&");
      return (text.match(new RegExp("(?<!\\w)" + exact + (word.length < 3 ? "(?!\\w)" : ""), "gi")) || []).length;
    };
    const show = async function () {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) { found.hidden = true; return; }
      const sections = await load();
      const hits = [];
      for (const s of sections) {
        let score = 0;
        for (const word of words) {
          const n = 40 * Math.min(1, count(s.p, word)) + 20 * Math.min(1, count(s.h, word)) + Math.min(5, count(s.t, word));
          if (!n) { score = 0; break; }
          score += n;
        }
        if (score && words.length > 1) score += 30 * count(s.h, words.join(" ")) + 15 * Math.min(3, count(s.t, words.join(" ")));
        if (score) hits.push([score, s]);
      }
      hits.sort(function (a, b) { return b[0] - a[0]; });
      found.replaceChildren();
      const list = document.createElement("ol");
      for (const [, s] of hits.slice(0, 12)) {
        const link = document.createElement("a"), line = document.createElement("li"), excerpt = document.createElement("p");
        link.href = up + s.u;
        link.textContent = s.p === s.h ? s.p : s.p + ": " + s.h;
        const text = s.t.toLowerCase(), whole = text.indexOf(words.join(" "));
        const at = Math.max(0, (whole < 0 ? text.indexOf(words[0]) : whole) - 60);
        excerpt.textContent = (at ? "… " : "") + s.t.slice(at, at + 180);
        line.append(link, excerpt);
        list.append(line);
      }
      const title = document.createElement("p");
      title.textContent = hits.length ? hits.length + (hits.length === 1 ? " section" : " sections") : "No section has all of these words.";
      found.append(title, list);
      found.hidden = false;
    };
    field.addEventListener("focus", load, { once: true });
    field.addEventListener("input", show);
    form.addEventListener("submit", function (e) {
      e.preventDefault();
      const first = found.querySelector("a");
      if (first) first.click();
    });
    document.addEventListener("keydown", function (e) {
      if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { e.preventDefault(); field.focus(); }
      if (e.key === "Escape") { field.value = ""; found.hidden = true; field.blur(); }
    });
  });
})();
