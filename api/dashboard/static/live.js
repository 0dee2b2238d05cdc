// Puts new numbers into a page that is open. The page works without it.
"use strict";
(() => {
  const main = document.querySelector("main[data-live]");
  if (!main || !["overview", "services", "service", "connections"].includes(main.dataset.live)) return;
  let every = Number(document.querySelector("footer").dataset.every); // ms; each version of the page says when the next one may be asked for
  const keyed = (root, name) => new Map([...root.querySelectorAll(`[data-${name}]`)].map((e) => [e.dataset[name], e]));
  const rows = (list) => [...list.querySelectorAll("[data-row]")].map((e) => e.dataset.row).join("\n");

  // update takes what differs from a newer version of the page. What is focused or selected stays.
  const update = (fresh) => {
    every = Number(fresh.querySelector("footer")?.dataset.every) || every;
    const lists = keyed(document, "list");
    for (const [name, list] of keyed(fresh, "list")) {
      const old = lists.get(name);
      if (old && rows(old) !== rows(list) && !old.contains(document.activeElement)) old.innerHTML = list.innerHTML;
    }
    const cells = keyed(fresh, "k");
    for (const old of document.querySelectorAll("[data-k]")) {
      const cell = cells.get(old.dataset.k);
      if (!cell || old.innerHTML === cell.innerHTML) continue;
      old.innerHTML = cell.innerHTML;
      old.setAttribute("class", cell.getAttribute("class") || "");
    }
  };
  const tick = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        if (answer.ok) update(new DOMParser().parseFromString(await answer.text(), "text/html"));
      } catch { /* the appliance restarts, perhaps: the next one asks again */ }
    }
    setTimeout(tick, every);
  };
  setTimeout(tick, every);
})();
